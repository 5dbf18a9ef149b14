// SPDX-License-Identifier: Apache-2.0
// How many exchanges of each name a rank has taken part in: what it leaves behind at a reader when it goes.
#ifndef HOROVOD_DATA_MEETING_ATTENDANCE_H_
#define HOROVOD_DATA_MEETING_ATTENDANCE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace hvdata {

class Attendance {
 public:
  // The number of this rank's next scatter of a name.
  uint64_t NextScatter(const std::string& name) { return scatters_[name]++; }
  void Gather(const std::string& name, uint64_t number) { gathers_[name] = std::max(gathers_[name], number + 1); }

  bool AtScatter(const std::string& name, uint64_t number) const { return At(scatters_, name, number); }
  bool AtGather(const std::string& name, uint64_t number) const { return At(gathers_, name, number); }

  std::string Encode() const {
    std::string text;
    for (const Counts* counts : {&scatters_, &gathers_}) {
      Append(counts->size(), &text);
      for (const auto& [name, count] : *counts) {
        Append(count, &text);
        Append(name.size(), &text);
        text += name;
      }
    }
    return text;
  }

  // Takes what it can of a text that came from outside.
  static Attendance Decode(std::string_view text) {
    Attendance found;
    for (Counts* counts : {&found.scatters_, &found.gathers_}) {
      uint64_t names = 0, count = 0, size = 0;
      Take(&text, &names);
      for (; names > 0 && Take(&text, &count) && Take(&text, &size) && size <= text.size(); --names) {
        (*counts)[std::string(text.substr(0, size))] = count;
        text.remove_prefix(size);
      }
    }
    return found;
  }

 private:
  using Counts = std::map<std::string, uint64_t>;

  static bool At(const Counts& counts, const std::string& name, uint64_t number) {
    const auto found = counts.find(name);
    return found != counts.end() && number < found->second;
  }

  static void Append(uint64_t value, std::string* out) {
    for (int i = 0; i < 8; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
  }

  static bool Take(std::string_view* from, uint64_t* value) {
    if (from->size() < 8) return false;
    *value = 0;
    for (size_t i = 8; i > 0; --i) *value = *value << 8 | static_cast<unsigned char>((*from)[i - 1]);
    from->remove_prefix(8);
    return true;
  }

  Counts scatters_, gathers_;  // calls made; one more than the highest number
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_MEETING_ATTENDANCE_H_
