// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target where libFuzzer is not installed: mutates what it has, and keeps what reaches code that nothing reached
// before, as GCC and clang report it (-fsanitize-coverage=trace-pc,trace-cmp). This file itself is built without that.
//
//   header_fuzz [-seconds N] [-seed N] [-keep] FOLDER   everything in the folder, and what follows from it, for N seconds
//   header_fuzz -select TO FOLDER                       copies what reaches something that no smaller one has reached
//   header_fuzz FILE                                    one input, as it was written when it was found
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <vector>

#include "fuzz/fuzz.h"

extern "C" void __sanitizer_set_death_callback(void (*callback)());

namespace {

namespace fs = std::filesystem;
using Input = std::vector<uint8_t>;

constexpr size_t kMostBytes = 4096;
constexpr unsigned kMostSeconds = 20;  // for one input
constexpr size_t kEdges = 1 << 16;

uint8_t reached[kEdges];  // by the input that runs
uint8_t ever_reached[kEdges];
uintptr_t last_place;
uint64_t compared[1024];  // constants that something was compared with
size_t comparisons;

const Input* running;

void Compared(uint64_t constant) {
  if (constant > 1) compared[comparisons++ % std::size(compared)] = constant;
}

void Write(const fs::path& file, const Input& input) {
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
}

// ---- What is left of an input that ends the process.

void WriteRunning() {
  if (running == nullptr) return;
  size_t hash = 0;
  for (const uint8_t byte : *running) hash = hash * 131 + byte;
  const std::string name = "crash-" + std::to_string(hash);
  Write(name, *running);
  std::fprintf(stderr, "the input is in %s/%s\n", fs::current_path().c_str(), name.c_str());
}

void OnAlarm(int) {
  std::fprintf(stderr, "one input takes more than %u s\n", kMostSeconds);
  WriteRunning();
  _exit(1);
}

// ---- Inputs.

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed) {}

  void Load(const fs::path& folder, const fs::path& select_to) {
    std::vector<std::pair<uintmax_t, fs::path>> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      files.emplace_back(entry.file_size(), entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const auto& [size, file] : files) {
      Input input = Read(file);
      if (Run(input) && !select_to.empty()) Write(select_to / file.filename(), input);
      pool_.push_back(std::move(input));
    }
    if (pool_.empty()) pool_.emplace_back();
  }

  static Input Read(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Whether it has reached anything new.
  bool Run(const Input& input) {
    std::memset(reached, 0, sizeof reached);
    last_place = 0;
    running = &input;
    alarm(kMostSeconds);
    const Input exact(input);  // on the heap, in its exact size, for the sanitizer to see who reads beyond it
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    alarm(0);
    running = nullptr;
    ++executions_;
    bool news = false;
    for (size_t i = 0; i < kEdges; i += sizeof(uint64_t)) {
      uint64_t eight;
      std::memcpy(&eight, reached + i, sizeof eight);
      if (eight == 0) continue;
      for (size_t j = i; j < i + sizeof eight; ++j) {
        // One time, two, three, up to 7, up to 15 and so on are different things.
        const uint8_t times =
            reached[j] == 0 ? 0 : static_cast<uint8_t>(1 << std::min(7, 31 - __builtin_clz(reached[j])));
        news = news || (times & ~ever_reached[j]) != 0;
        ever_reached[j] = static_cast<uint8_t>(ever_reached[j] | times);
      }
    }
    return news;
  }

  void Go(double seconds, const fs::path& keep_in) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
      const size_t newest = pool_.size() - 1 - Below(std::min<size_t>(pool_.size(), 16));
      Input input = pool_[Below(3) == 0 ? newest : Below(pool_.size())];
      for (uint64_t changes = 1 + Below(6); changes > 0; --changes) Change(&input);
      if (input.size() > kMostBytes) input.resize(kMostBytes);
      if (!Run(input)) continue;
      if (!keep_in.empty()) Write(keep_in / ("found-" + std::to_string(executions_)), input);
      pool_.push_back(std::move(input));
    }
  }

  uint64_t executions() const { return executions_; }
  size_t inputs() const { return pool_.size(); }

 private:
  size_t Below(size_t most) { return most == 0 ? 0 : random_() % most; }

  void Change(Input* input) {
    const size_t at = Below(input->size() + 1);
    const auto here = input->begin() + static_cast<std::ptrdiff_t>(at);
    const size_t left = input->size() - at;
    static constexpr size_t kWidths[] = {1, 2, 4, 8};
    const size_t width = kWidths[Below(4)];
    static constexpr uint64_t kNumbers[] = {0,       1,          0x7f,     0x80,  0xff,       0x7fff,
                                            1 << 16, 0x7fffffff, 1u << 31, ~0ull, ~0ull >> 1, 1ull << 63};
    uint64_t number = 0;
    switch (Below(9)) {
      case 0:
        if (left > 0) *here = static_cast<uint8_t>(*here ^ 1 << Below(8));
        return;
      case 1:
        if (left > 0) *here = static_cast<uint8_t>(random_());
        return;
      case 2:
        input->erase(here, here + static_cast<std::ptrdiff_t>(Below(std::min<size_t>(left, 32) + 1)));
        return;
      case 3: {
        Input bytes(1 + Below(16));
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
        input->insert(here, bytes.begin(), bytes.end());
        return;
      }
      case 4: {  // a piece of another one
        const Input other = pool_[Below(pool_.size())];
        const size_t from = Below(other.size() + 1), count = Below(other.size() - from + 1);
        input->insert(here, other.data() + from, other.data() + from + count);
        return;
      }
      case 5:
        if (Below(4) == 0) input->resize(at);
        return;
      case 6:
        number = kNumbers[Below(std::size(kNumbers))];
        break;
      case 7:
        number = compared[Below(std::min(comparisons, std::size(compared)))] + Below(3) - 1;
        break;
      default:  // a little more or less than what is there
        if (left < width) return;
        std::memcpy(&number, &*here, width);
        number += Below(33) - 16;
    }
    if (left >= width)
      std::memcpy(&*here, &number, width);
    else
      input->insert(here, reinterpret_cast<uint8_t*>(&number), reinterpret_cast<uint8_t*>(&number) + width);
  }

  std::mt19937_64 random_;
  std::vector<Input> pool_;
  uint64_t executions_ = 0;
};

}  // namespace

// ---- What the compiler calls.

extern "C" {
void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  const size_t edge = (place ^ (last_place >> 1)) * 0x9e3779b97f4a7c15ull >> 48;
  if (reached[edge] < 255) ++reached[edge];
  last_place = place;
}
void __sanitizer_cov_trace_cmp1(uint8_t, uint8_t) {}
void __sanitizer_cov_trace_cmp2(uint16_t, uint16_t) {}
void __sanitizer_cov_trace_cmp4(uint32_t, uint32_t) {}
void __sanitizer_cov_trace_cmp8(uint64_t, uint64_t) {}
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}
void __sanitizer_cov_trace_const_cmp1(uint8_t constant, uint8_t) { Compared(constant); }
void __sanitizer_cov_trace_const_cmp2(uint16_t constant, uint16_t) { Compared(constant); }
void __sanitizer_cov_trace_const_cmp4(uint32_t constant, uint32_t) { Compared(constant); }
void __sanitizer_cov_trace_const_cmp8(uint64_t constant, uint64_t) { Compared(constant); }
void __sanitizer_cov_trace_switch(uint64_t, uint64_t*) {}

// abort() is reported as well, and so is who asks for more memory than any input can be worth.
__attribute__((visibility("default"))) const char* __asan_default_options() {
  return "handle_abort=1:max_allocation_size_mb=64:allocator_may_return_null=0:detect_container_overflow=0";
}
}

int main(int argc, char** argv) {
  double seconds = 0;
  uint64_t seed = 1;
  bool keep = false;
  fs::path path, select_to;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "-seconds" && i + 1 < argc)
      seconds = std::atof(argv[++i]);
    else if (word == "-seed" && i + 1 < argc)
      seed = std::strtoull(argv[++i], nullptr, 10);
    else if (word == "-keep")
      keep = true;
    else if (word == "-select" && i + 1 < argc)
      select_to = argv[++i];
    else
      path = word;
  }
  if (!fs::exists(path)) {
    std::fprintf(stderr, "usage: %s [-seconds N] [-seed N] [-keep] FOLDER, or %s FILE\n", argv[0], argv[0]);
    return 2;
  }
  __sanitizer_set_death_callback(WriteRunning);
  std::signal(SIGALRM, OnAlarm);
  Fuzzer fuzzer(seed);
  if (!fs::is_directory(path)) return fuzzer.Run(Fuzzer::Read(path)), 0;
  fuzzer.Load(path, select_to);
  const size_t kept = fuzzer.inputs();
  fuzzer.Go(seconds, keep ? path : fs::path());
  const auto edges =
      std::count_if(std::begin(ever_reached), std::end(ever_reached), [](uint8_t one) { return one != 0; });
  std::printf("%s: %llu executions in %g s, %zu inputs kept and %zu found, %td edges reached\n",
              fs::path(argv[0]).filename().c_str(), static_cast<unsigned long long>(fuzzer.executions()), seconds, kept,
              fuzzer.inputs() - kept, edges);
  return 0;
}
