// SPDX-License-Identifier: Apache-2.0
// Counts, for each library of the process, the handles that it takes from MPI and gives back; loaded before the others, by way of
// MPI's profiling interface. After MPI_Finalize a line on stderr for each library and kind. Open MPI's own count
// (mpi_show_handle_leaks) knows neither whose they are nor most kinds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { kComm, kGroup, kKeyval, kRequest, kMessage, kKinds, kLibraries = 32 };
static const char *const kNames[] = {"communicators", "groups", "keyvals", "requests", "messages"};
static struct { char name[256]; long taken[kKinds], given[kKinds]; } libraries[kLibraries];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void count(void *caller, int kind, int taken, int given) {
  Dl_info info;
  const char *path = dladdr(caller, &info) && info.dli_fname ? info.dli_fname : "?";
  const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
  pthread_mutex_lock(&mutex);
  int i = 0;
  while (i < kLibraries - 1 && libraries[i].name[0] && strcmp(libraries[i].name, name)) ++i;
  strncpy(libraries[i].name, name, sizeof libraries[i].name - 1);
  libraries[i].taken[kind] += taken;
  libraries[i].given[kind] += given;
  pthread_mutex_unlock(&mutex);
}

#define CALLER __builtin_return_address(0)
#define TAKES(kind, name, declared, given)                                 \
  int MPI_##name declared {                                                \
    int code = PMPI_##name given;                                          \
    if (code == MPI_SUCCESS) count(CALLER, kind, 1, 0);                    \
    return code;                                                           \
  }
#define GIVES(kind, name, type)                                            \
  int MPI_##name(type *handle) {                                           \
    int code = PMPI_##name(handle);                                        \
    if (code == MPI_SUCCESS) count(CALLER, kind, 0, 1);                    \
    return code;                                                           \
  }

TAKES(kComm, Comm_dup, (MPI_Comm comm, MPI_Comm *made), (comm, made))
TAKES(kGroup, Comm_group, (MPI_Comm comm, MPI_Group *group), (comm, group))
TAKES(kKeyval, Comm_create_keyval, (MPI_Comm_copy_attr_function *copy, MPI_Comm_delete_attr_function *del, int *key, void *extra),
      (copy, del, key, extra))
TAKES(kRequest, Isend, (const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request),
      (data, n, type, to, tag, comm, request))
TAKES(kRequest, Irecv, (void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request),
      (data, n, type, from, tag, comm, request))
TAKES(kRequest, Ireduce_scatter_block,
      (const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *request),
      (from, to, n, type, op, comm, request))
GIVES(kComm, Comm_free, MPI_Comm)
GIVES(kGroup, Group_free, MPI_Group)
GIVES(kKeyval, Comm_free_keyval, int)

int MPI_Improbe(int from, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status) {
  int code = PMPI_Improbe(from, tag, comm, flag, message, status);
  if (code == MPI_SUCCESS && *flag) count(CALLER, kMessage, 1, 0);
  return code;
}

int MPI_Imrecv(void *data, int n, MPI_Datatype type, MPI_Message *message, MPI_Request *request) {
  int code = PMPI_Imrecv(data, n, type, message, request);
  if (code == MPI_SUCCESS) {
    count(CALLER, kMessage, 0, 1);
    count(CALLER, kRequest, 1, 0);
  }
  return code;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
  int counts = *request != MPI_REQUEST_NULL;
  int code = PMPI_Test(request, flag, status);
  if (code == MPI_SUCCESS && *flag && counts) count(CALLER, kRequest, 0, 1);
  return code;
}

int MPI_Finalize(void) {
  int code = PMPI_Finalize();  // communicators may still be freed in it, by attributes' delete functions
  for (int i = 0; i < kLibraries && libraries[i].name[0]; ++i) {
    for (int kind = 0; kind < kKinds; ++kind) {
      if (libraries[i].taken[kind] || libraries[i].given[kind]) {
        fprintf(stderr, "handles of %s: %s taken %ld, given back %ld\n", libraries[i].name, kNames[kind],
                libraries[i].taken[kind], libraries[i].given[kind]);
      }
    }
  }
  return code;
}
