// SPDX-License-Identifier: Apache-2.0
// The C functions that the Python package calls through ctypes (which releases the GIL), so that they also work while a
// TensorFlow graph is being built. Nothing else of the library is exported.
//
// Unless said otherwise a function returns 0, or a TensorFlow status code (absl::StatusCode) with the text in
// hvdata_last_error() of the same thread. Waiting functions take a time slice in milliseconds and return HVDATA_PENDING
// when it is over, so that the caller can look for Ctrl-C between slices. Strings are UTF-8.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVDATA_EXPORT __attribute__((visibility("default")))
#define HVDATA_PENDING (-1)

HVDATA_EXPORT const char* hvdata_last_error(void);

// JSON object: {"version", "tensorflow", "cxx11_abi", "mpi"}: what this library was built with and, for "mpi", the
// library's own version text (MPI_Get_library_version, which may be called before MPI_Init).
HVDATA_EXPORT const char* hvdata_build_info(void);

// The structures that Python fills, a line each: "EngineSettings SIZE TYPE NAME;TYPE NAME;...". It makes its own of this, so
// that a structure that doesn't fit is found when the library is loaded (engine/engine.h, channel/channel_config.h).
HVDATA_EXPORT const char* hvdata_structures(void);

// ---- MPI, before start. On the caller's thread. `comm` points to an MPI_Comm (mpi4py: MPI._addressof(comm)); NULL is
// MPI_COMM_WORLD.

// thread_level: 0 SINGLE, 1 FUNNELED, 2 SERIALIZED, 3 MULTIPLE; -1 while MPI is not initialised.
HVDATA_EXPORT int hvdata_mpi_query(int* initialized, int* finalized, int* thread_level);
// MPI_Init_thread(MPI_THREAD_MULTIPLE). MPI that we initialised we also finalise, when the process exits.
HVDATA_EXPORT int hvdata_mpi_init(void);
HVDATA_EXPORT int hvdata_comm_info(const void* comm, int* rank, int* size);
// world_ranks[i]: the rank in MPI_COMM_WORLD of rank i of comm. Room for comm's size.
HVDATA_EXPORT int hvdata_comm_world_ranks(const void* comm, int* world_ranks);
// Collective on comm: everybody's `mine` (n bytes). The result is a sequence of (uint64 little-endian length, bytes) in
// rank order; valid until this thread's next call.
HVDATA_EXPORT int hvdata_comm_exchange(const void* comm, const char* mine, size_t n, const char** all, size_t* all_n);

// ---- The engine.

// Collective on comm. For each rank of comm: reader_index (0..R-1, -1 if it does not read), trainer_index (0..N-1, -1 if
// it does not train), group (readers deal to the trainers of their own group) and host name. settings: an EngineSettings.
HVDATA_EXPORT int hvdata_start(const void* comm, const int* reader_index, const int* trainer_index, const int* group,
                               const char* const* hosts, const void* settings);
// 0 never started, 1 running, 2 shut down, 3 broken, 4 forked child of a process that started one.
HVDATA_EXPORT int hvdata_state(void);
// Says BYE: this process's trainer side closes all its lanes. Idempotent.
HVDATA_EXPORT int hvdata_bye(void);
// Waits until every trainer has said BYE.
HVDATA_EXPORT int hvdata_wait_all_bye(int slice_ms);
// From now on agreements that others begin are refused with `why` (on a dedicated reader inside serve()).
HVDATA_EXPORT int hvdata_refuse_agreements(const char* why);
// After hvdata_bye (and, on a reader, hvdata_wait_all_bye): ends all sources and leaves the transport. The communication
// thread ends in the background, at the latest in MPI_Finalize.
HVDATA_EXPORT int hvdata_stop(void);
// After hvdata_stop: waits until the communication thread has ended, or for so long.
HVDATA_EXPORT int hvdata_wait_left(int patience_ms);
// After hvdata_stop, where hvdata_wait_left was in vain: the communication thread makes no call of MPI (on = 1) until
// MPI_Finalize begins, or until this is called with 0, for some seconds at most.
HVDATA_EXPORT int hvdata_hush(int on);
// `call` is made when the program itself calls MPI_Finalize, before MPI ends.
typedef void (*hvdata_call)(void);
HVDATA_EXPORT int hvdata_on_finalize(hvdata_call call);
// MPI_Abort(MPI_COMM_WORLD, status), or _exit(status) where MPI is not running. Does not return.
HVDATA_EXPORT void hvdata_abort(int status);
// JSON: the counters of this process.
HVDATA_EXPORT const char* hvdata_stats(void);

// ---- Agreements: every rank's k-th one is matched. Each rank contributes some bytes and gets all of them.

// `what` names the call in waiting messages: "distribute_dataset(name='train')".
HVDATA_EXPORT int hvdata_agree_begin(const char* mine, size_t n, const char* what, int64_t* number);
// The result, equal contributions joined: sequence of (uint64 count, count x uint64 rank of comm, uint64 length, bytes).
// Valid until this thread's next call.
HVDATA_EXPORT int hvdata_agree_wait(int64_t number, int slice_ms, const char** result, size_t* n);

// ---- Channels.

// options: a ChannelOptions. For each of the `components` tensors of a share, without the weight: its name for error texts
// ("['image']"), what an empty share holds of it (ops/cut.h), TensorFlow's DataType, and the rank of its static shape (-1:
// unknown); dims: of all static shapes, one after the other, -1 for an unknown size.
HVDATA_EXPORT int hvdata_channel_create(const void* options, const char* name, int components, const char* const* names,
                                        const int* empty_rules, const int* dtypes, const int* ranks, const int64_t* dims);
// A use of the channel besides its dataset objects (a graph). The channel is released when nothing uses it.
HVDATA_EXPORT int hvdata_channel_use(uint32_t channel);
HVDATA_EXPORT int hvdata_channel_unuse(uint32_t channel);
// Reader: waits for the next epoch to deal. *epoch is its number (from 1); 0: the channel has ended, stop waiting. *number: its
// number over all runs, where training went on from a checkpoint.
HVDATA_EXPORT int hvdata_source_wait(uint32_t channel, int slice_ms, uint64_t* epoch, uint64_t* number);
// Reader: epoch `epoch` could not even begin (or failed outside the deal op): delivers the error to every trainer.
HVDATA_EXPORT int hvdata_source_fail(uint32_t channel, uint64_t epoch, int code, const char* message);

// A number that no other process nor engine has: a dataset op found with another one comes from a saved graph.
HVDATA_EXPORT uint64_t hvdata_session(void);

#ifdef __cplusplus
}
#endif
