// SPDX-License-Identifier: Apache-2.0
// Measures the memory, processor time and file descriptors of a process, and collects the figures of all processes.
// Together() waits for other processes without using processor time.
#pragma once

#include <mpi.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace hvdata {

// All ranks of one machine have this clock in common.
inline double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The word after "NAME:" in a file of /proc/self; empty where there is none.
inline std::string WordIn(const std::string& file, const std::string& name) {
  std::ifstream in("/proc/self/" + file);
  for (std::string word; in >> word;) {
    if (word == name + ":" && in >> word) return word;
  }
  return "";
}
inline double NumberIn(const std::string& file, const std::string& name) {
  const std::string word = WordIn(file, name);
  return word.empty() ? 0 : std::stod(word);
}

// The folder of the communication thread in /proc/self; empty where there is none.
inline std::string CommThread() {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string folder = "task/" + thread.path().filename().string();
    if (WordIn(folder + "/status", "Name") == "hvdata-comm") return folder;
  }
  return "";
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
  double nanoseconds = 0;
  std::ifstream("/proc/self/" + CommThread() + "/schedstat") >> nanoseconds;
  if (!CommThread().empty()) usage.comm_cpu = 1e-9 * nanoseconds;
  usage.source_cpu = 1e-9 * static_cast<double>(SourceNanoseconds().load());
  usage.anon = NumberIn("status", "RssAnon");
  usage.shared = NumberIn("status", "RssShmem");
  usage.pss = NumberIn("smaps_rollup", "Pss");
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

// The figures of a rank at the end. All are numbers.
class Figures {
 public:
  void Add(const std::string& name, double value) { names_.push_back(name), values_.push_back(value); }
  void Add(const std::string& name, const Usage& usage) {
    double values[kUsageFigures];
    std::memcpy(values, &usage, sizeof values);
    const char* const names[] = {"at", "cpu", "comm_cpu", "source_cpu", "anon", "shared", "pss", "fds"};
    static_assert(sizeof names / sizeof names[0] == kUsageFigures, "one for each");
    for (int i = 0; i < kUsageFigures; ++i) Add(name + "." + names[i], values[i]);
  }

  // Collective. A JSON object of a list for each name, by process.
  void Write(const std::string& file, int rank, int processes) {
    const auto each = static_cast<int>(values_.size());
    std::vector<double> all(static_cast<size_t>(rank == 0 ? each * processes : 0));
    MPI_Request request;
    MPI_Igather(values_.data(), each, MPI_DOUBLE, all.data(), each, MPI_DOUBLE, 0, MPI_COMM_WORLD, &request);
    Finish(request);
    if (rank != 0 || file.empty()) return;
    std::ofstream out(file);
    out.precision(17);
    for (size_t i = 0; i < names_.size(); ++i) {
      out << (i > 0 ? ",\n" : "{") << '"' << names_[i] << "\": [";
      for (int r = 0; r < processes; ++r) out << (r > 0 ? ", " : "") << all[static_cast<size_t>(r * each) + i];
      out << "]";
    }
    out << "}\n";
  }

 private:
  std::vector<std::string> names_;
  std::vector<double> values_;
};

}  // namespace hvdata
