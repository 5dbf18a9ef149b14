// SPDX-License-Identifier: Apache-2.0
#include "timeline/timeline.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/stopwatch.h"

namespace hvdata {
namespace {

constexpr int kFormat = 1;
constexpr int64_t kEvery = 200000000;                // ns, and up to 100 ms more, until the next tick
constexpr auto kPatience = std::chrono::seconds(2);  // for the first answers of reader 0
constexpr uint64_t kBytesOfAnEvent = 150;            // in the merged file

int64_t WallMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// horovod_data/timeline makes the same name.
std::string FileOf(const std::string& path, const Member& me) {
  return path + (me.trains() ? ".rank" + std::to_string(me.trainer) : ".reader" + std::to_string(me.reader));
}

template <typename T>
std::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace

Timeline::Timeline(const World* world, Send send, const std::string& path, uint64_t most_bytes, size_t most_events)
    : world_(world),
      send_(std::move(send)),
      file_(std::make_shared<TimelineFile>(FileOf(path, world->me()), world->Here())),
      same_clock_(world->me().host == world->members[static_cast<size_t>(world->readers[0])].host),
      own_zero_(SteadyNow()),
      log_(most_events),
      most_to_write_(most_bytes / kBytesOfAnEvent / world->members.size()) {
  batch_.reserve(most_events);
  const Member& me = world_->me();
  std::string head;
  for (const int number :
       {kFormat, me.trainer, me.reader, world_->trainer_count(), static_cast<int>(world_->readers.size())})
    head += std::to_string(number) + " ";
  Write("HEAD", head + me.host);
  if (is_reader_0()) WriteClock({own_zero_, own_zero_, 0, own_zero_, 0});
}

void Timeline::Tick(const std::function<void()>& note) {
  {
    MutexLock lock(&mu_);
    if (ended_ || SteadyNow() < next_) return;
    next_ = SteadyNow() + kEvery;
  }
  try {
    note();
    MutexLock lock(&mu_);
    if (ended_) return;  // End() came first: its block is the last one of the file
    AskForTime();
    WriteEvents();
  } catch (const std::exception& thrown) {  // for example no memory: the job goes on
    Log(world_->Here(), "the timeline ends here for this process: " + Explained(thrown).message);
    MutexLock lock(&mu_);
    ended_ = true;
  }
}

void Timeline::End() {
  MutexLock lock(&mu_);
  if (std::exchange(ended_, true)) return;
  WriteEvents();
  AskForTime();  // there may never have been a tick
  changed_.WaitFor(&mu_, kPatience, [this] { return mu_.AssertHeld(), known_ || is_reader_0(); });
  Write("ENDS", BytesOf(left_out_));
}

// ---- Blocks of the file.

bool Timeline::Write(const char (&kind)[5], std::string_view payload) {
  std::string block = std::string(kind, 4);
  block += BytesOf(static_cast<uint32_t>(payload.size()));
  block += payload;
  const size_t bytes = block.size();
  return FileWriter().Add(bytes, [file = file_, block = std::move(block)] { file->Append(block); });
}

void Timeline::NameChannel(uint32_t number, const std::string& name) {
  Write("CHAN", std::string(BytesOf(number)) + name);
}

void Timeline::WriteClock(Clock clock) {
  clock.wall = WallMicros() - (SteadyNow() - clock.here) / 1000;
  Write("CLCK", BytesOf(clock));
}

void Timeline::WriteEvents() {
  uint64_t left_out = log_.Take(&batch_);
  const uint64_t fit = std::min<uint64_t>(batch_.size(), most_to_write_);
  // When one batch does not fit, drop all later batches, too. Otherwise the file could have a gap in the middle, which
  // the user would overlook.
  most_to_write_ = fit < batch_.size() ? 0 : most_to_write_ - fit;
  left_out += batch_.size() - fit;
  if (fit > 0 && !Write("EVNT", {reinterpret_cast<const char*>(batch_.data()), fit * sizeof(TraceEvent)}))
    left_out += fit;
  if (left_out == 0) return;
  left_out_ += left_out;
  Write("LOST", std::string(BytesOf(left_out)) + std::string(BytesOf(SteadyNow())));
}

// ---- Messages.

void Timeline::AskForTime() {
  if (is_reader_0() || (known_ && (same_clock_ || ended_))) return;
  const bool under_way = asked_ != 0 && SteadyNow() - asked_ < std::chrono::nanoseconds(kPatience).count();
  if (under_way) return;
  asked_ = SteadyNow();
  send_(world_->readers[0], MakeHeader(0, 0, wire::Ping{asked_}), nullptr);
}

void Timeline::On(int member, const wire::Ping& ping) {
  if (is_reader_0()) send_(member, MakeHeader(0, 0, wire::Pong{ping.asked, SteadyNow(), own_zero_}), nullptr);
}

void Timeline::On(const wire::Pong& pong) {
  const int64_t back = SteadyNow();
  MutexLock lock(&mu_);
  if (pong.asked != asked_ || asked_ == 0) return;  // the answer came too late
  // Reader 0 read its clock at an unknown moment of the round trip. The middle of the trip is wrong by at most half of
  // it.
  const int64_t round_trip = back - std::exchange(asked_, 0), here = back - round_trip / 2;
  known_ = true;
  WriteClock(same_clock_ ? Clock{here, here, 0, pong.zero, 0} : Clock{here, pong.there, round_trip, pong.zero, 0});
  changed_.NotifyAll();
}

}  // namespace hvdata
