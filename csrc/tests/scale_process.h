// SPDX-License-Identifier: Apache-2.0
// The memory, processor time and file descriptors that a process has used so far, and a wait for other processes that
// uses none.
#pragma once

#include <mpi.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace hvdata {

// All ranks of one machine have this clock in common.
inline double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A line "NAME: N kB" of a file of /proc/self, in KiB; 0 where there is none.
inline double KibIn(const std::string& file, const std::string& name) {
  std::ifstream in("/proc/self/" + file);
  for (std::string word; in >> word;) {
    if (word != name + ":") continue;
    double kib = 0;
    in >> kib;
    return kib;
  }
  return 0;
}

inline double ThreadSeconds() {
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// Of all dealers of this process.
inline std::atomic<uint64_t>& SourceNanoseconds() {
  static std::atomic<uint64_t> nanoseconds{0};
  return nanoseconds;
}

struct Usage {
  double at = 0;                         // s
  double cpu = 0;                        // s, of all threads
  double comm_cpu = 0;                   // s, of the communication thread
  double source_cpu = 0;                 // s, that the made-up source took
  double anon = 0, shared = 0, pss = 0;  // KiB: private memory, touched shared memory, the process's part of all
  double fds = 0;
};
constexpr int kUsageFigures = sizeof(Usage) / sizeof(double);

inline Usage Used() {
  Usage usage;
  usage.at = Now();
  rusage of{};
  getrusage(RUSAGE_SELF, &of);
  usage.cpu = static_cast<double>(of.ru_utime.tv_sec + of.ru_stime.tv_sec) +
              1e-6 * static_cast<double>(of.ru_utime.tv_usec + of.ru_stime.tv_usec);
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    double nanoseconds = 0;
    std::ifstream(thread.path() / "comm") >> name;
    std::ifstream(thread.path() / "schedstat") >> nanoseconds;
    if (name == "hvdata-comm") usage.comm_cpu += 1e-9 * nanoseconds;
  }
  usage.source_cpu = 1e-9 * static_cast<double>(SourceNanoseconds().load());
  usage.anon = KibIn("status", "RssAnon");
  usage.shared = KibIn("status", "RssShmem");
  usage.pss = KibIn("smaps_rollup", "Pss");
  const std::filesystem::directory_iterator fds("/proc/self/fd");
  usage.fds = static_cast<double>(std::distance(begin(fds), end(fds)) - 1);  // less that of the folder
  return usage;
}

// MPI's own barriers spin, and so take the cores from the processes that are still working.
inline void Finish(MPI_Request request) {
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done;) usleep(2000);
}

inline void Together() {
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  Finish(request);
}

}  // namespace hvdata
