// SPDX-License-Identifier: Apache-2.0
#include "timeline/lines.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/json.h"

namespace hvdata {
namespace {

constexpr int kFormat = 1;
constexpr std::string_view kPhase = "{\"ph\":\"X\"", kMoment = "{\"ph\":\"i\",\"s\":\"t\"";
constexpr int kLinesOfARow = 1000;  // Perfetto wants numbers of threads that no other process has

std::string Micros(int64_t ns) {
  char text[32];
  const uint64_t size = ns < 0 ? -static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  std::snprintf(text, sizeof(text), "%s%" PRIu64 ".%03" PRIu64, ns < 0 ? "-" : "", size / 1000, size % 1000);
  return text;
}

int RowOf(const World& world, int member) {
  const Member& m = world.members[static_cast<size_t>(member)];
  return m.trains() ? m.trainer : world.trainer_count() + m.reader;
}

int LineOf(int row, uint32_t channel, bool reads) {
  return (row + 1) * kLinesOfARow + static_cast<int>(channel % (kLinesOfARow / 2)) * 2 + (reads ? 1 : 0);
}

std::string Meta(const std::string& name, int row, int line, const std::string& args) {
  return "{\"ph\":\"M\",\"name\":" + Quoted(name) + ",\"pid\":" + std::to_string(row) +
         ",\"tid\":" + std::to_string(line) + ",\"args\":{" + args + "}},\n";
}

}  // namespace

TimelineLines::TimelineLines(const World& world) : world_(world), row_(RowOf(world, world.self)) {}

std::string TimelineLines::Process() const {
  const Member& me = world_.me();
  std::string name = world_.Name(world_.self);
  if (me.trains() && me.reads()) name += ", reader " + std::to_string(me.reader);
  const int line = LineOf(row_, 0, false);
  return Meta("process_name", row_, line, "\"name\":" + Quoted(name)) +
         Meta("process_sort_index", row_, line, "\"sort_index\":" + std::to_string(row_));
}

std::string TimelineLines::Clock(int64_t wall, int64_t offset_ns, int64_t round_trip_ns) const {
  return Meta("horovod_data clock", row_, LineOf(row_, 0, false),
              "\"start_time_since_epoch_in_micros\":" + std::to_string(wall) +
                  ",\"offset_in_micros\":" + Micros(offset_ns) + ",\"round_trip_in_micros\":" + Micros(round_trip_ns));
}

void TimelineLines::Append(const TraceEvent& event, int64_t begin, int64_t end, const std::string& channel,
                           std::string* lines) {
  const int line = LineOf(row_, event.channel, event.reads);
  const char* const role = event.reads ? "reader" : "trainer";
  if (named_.emplace(event.channel, event.reads).second) {
    *lines += Meta("thread_name", row_, line, "\"name\":" + Quoted(channel + " (" + role + ")")) +
              Meta("thread_sort_index", row_, line, "\"sort_index\":" + std::to_string(line));
  }
  *lines += event.moment ? kMoment : kPhase;
  *lines += std::string(",\"name\":\"") + event.name + "\",\"cat\":\"" + role + "\",\"pid\":" + std::to_string(row_) +
            ",\"tid\":" + std::to_string(line) + ",\"ts\":" + Micros(begin);
  if (!event.moment) *lines += ",\"dur\":" + Micros(end - begin);
  *lines += ",\"args\":{\"channel\":" + Quoted(channel) + ",\"epoch\":" + std::to_string(event.epoch) +
            ",\"step\":" + std::to_string(event.step);
  if (event.reads) *lines += ",\"reader\":" + std::to_string(world_.me().reader);
  if (event.whom != TraceEvent::kNobody)
    *lines += (event.reads ? ",\"rank\":" : ",\"reader\":") + std::to_string(event.whom);
  *lines += "}},\n";
}

std::string TimelineLines::LeftOut(uint64_t count, int64_t now) const {
  return "{\"ph\":\"i\",\"s\":\"p\",\"name\":\"" + std::to_string(count) +
         " events left out\",\"cat\":\"left out\",\"pid\":" + std::to_string(row_) +
         ",\"tid\":" + std::to_string(LineOf(row_, 0, false)) + ",\"ts\":" + Micros(now) +
         ",\"args\":{\"left_out\":" + std::to_string(count) + "}},\n";
}

uint64_t CountEvents(std::string_view lines) {
  uint64_t count = 0;
  while (!lines.empty()) {
    for (const std::string_view begin : {kPhase, kMoment}) count += lines.substr(0, begin.size()) == begin ? 1 : 0;
    lines.remove_prefix(std::min(lines.find('\n'), lines.size() - 1) + 1);
  }
  return count;
}

std::string TimelineBegin(const World& world) {
  return "[\n" +
         Meta("horovod_data", RowOf(world, world.readers[0]), LineOf(RowOf(world, world.readers[0]), 0, false),
              "\"timeline\":" + std::to_string(kFormat) + ",\"ranks\":" + std::to_string(world.trainer_count()) +
                  ",\"readers\":" + std::to_string(world.readers.size()));
}

std::string TimelineEnd(const World& world, uint64_t left_out) {
  const int row = RowOf(world, world.readers[0]);
  const std::string last =
      Meta("horovod_data end", row, LineOf(row, 0, false), "\"left_out\":" + std::to_string(left_out));
  return last.substr(0, last.size() - 2) + "\n]\n";
}

}  // namespace hvdata
