// SPDX-License-Identifier: Apache-2.0
#include "timeline/timeline.h"

#include <pthread.h>

#include <cstdlib>
#include <exception>
#include <utility>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/place.h"
#include "base/stopwatch.h"
#include "base/threads.h"

namespace hvdata {
namespace {

using std::chrono::milliseconds;

constexpr auto kEvery = milliseconds(250);
constexpr auto kPatience = milliseconds(5000);  // for an answer, of reader 0 or at the end of all others
constexpr int kQuestions = 4;                   // one upon the other: the first finds threads asleep, on both sides
constexpr size_t kMostLines = 256 << 10;        // bytes of a message
constexpr int64_t kWorthTelling = 100000;       // ns that the clocks have drifted apart

int64_t WallMicros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Timeline::Timeline(const World* world, Send send, const std::string& path, uint64_t most_bytes, size_t most_events)
    : world_(world),
      send_(std::move(send)),
      log_(most_events),
      collector_(world->readers[0] == world->self ? std::make_unique<TimelineCollector>(world, path, most_bytes)
                                                  : nullptr),
      clock_(SteadyClockId()),
      own_zero_(SteadyNow()),
      lines_(*world) {
  batch_.reserve(most_events);
}

void Timeline::Halt() {
  GiveUp();
  {
    MutexLock lock(&mu_);
    ending_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Timeline::Begin(std::function<void()> note) {
  note_ = std::move(note);
  if (collector_) {
    collector_->Open();
    MutexLock lock(&mu_);
    offset_.Same();
    zero_ = own_zero_;
  }
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::exception& thrown) {
    Log(Place(world_->Name(world_->self)) +
        "the timeline gets what this process does at its end only: there is no thread to be "
        "had for it (" +
        thrown.what() + ")");
  }
}

void Timeline::Run() {
  pthread_setname_np(pthread_self(), "hvdata-timeline");
  for (;;) {
    {
      MutexLock lock(&mu_);
      if (changed_.WaitFor(&mu_, kEvery, [this] { return mu_.AssertHeld(), ending_; })) return;
    }
    try {
      note_();
      Round(kPatience, false);
    } catch (const std::exception& thrown) {  // no memory, say: the job goes on
      return Log(Place(world_->Name(world_->self)) +
                 "the timeline ends here for this process: " + Explained(thrown).message);
    }
  }
}

void Timeline::End() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(ending_, true)) return;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  Round(kPatience, true);
  if (!collector_) return;
  collector_->AwaitLast(kPatience);
  collector_->Write();
  collector_->Close();
}

void Timeline::GiveUp() {
  if (collector_) collector_->GiveUp();
  MutexLock lock(&mu_);
  given_up_ = true;
  changed_.NotifyAll();
}

void Timeline::NameChannel(uint32_t number, const std::string& name) {
  MutexLock lock(&mu_);
  channels_[number] = name;
}

std::string Timeline::NameOf(uint32_t channel) {
  MutexLock lock(&mu_);
  return channels_[channel];
}

// ---- The thread's.

void Timeline::Round(milliseconds patience, bool last) {
  if (collector_ || Ask(kQuestions, patience)) Tell(patience, last);
  if (collector_) collector_->Write();
}

// Asks reader 0 for its time. Whether it has answered: then it has all that was sent before, too.
bool Timeline::Ask(int times, milliseconds patience) {
  MutexLock lock(&mu_);
  to_ask_ = times - 1;
  asked_ = SteadyNow();
  send_(writer(), MakeHeader(0, 0, wire::Ping{asked_}), nullptr);
  changed_.WaitFor(&mu_, patience, [&] { return mu_.AssertHeld(), (asked_ == 0 && to_ask_ == 0) || given_up_; });
  return std::exchange(asked_, 0) == 0 && offset_.known();
}

void Timeline::Tell(milliseconds patience, bool last) {
  const uint64_t left_out = log_.Take(&batch_);
  wire::Events events;
  events.left_out = std::exchange(left_out_, 0) + left_out;
  ClockOffset offset;
  int64_t zero;
  const int64_t now = SteadyNow();
  {
    MutexLock lock(&mu_);
    offset_.Fix(now);
    offset = offset_;
    zero = zero_;
  }
  const auto told = [&](int64_t time) { return offset.There(time) - zero; };
  const bool first = !std::exchange(introduced_, true);
  if (first) events.head = lines_.Process();
  if (first || last || std::abs(offset.offset() - told_offset_) > kWorthTelling) {
    told_offset_ = offset.offset();
    std::string* const where =
        first || last ? &events.head : &events.lines;  // of these there are few, and they are always written
    *where += lines_.Clock(WallMicros() - told(SteadyNow()) / 1000, offset.offset(), offset.round_trip());
  }
  if (events.left_out > 0) events.lines += lines_.LeftOut(events.left_out, told(now));
  for (size_t i = 0; i < batch_.size(); ++i) {
    const TraceEvent& event = batch_[i];
    lines_.Append(event, told(event.begin), told(event.end), NameOf(event.channel), &events.lines);
    if (events.lines.size() < kMostLines) continue;
    Pass(std::exchange(events, wire::Events()));
    if (collector_ || Ask(1, patience)) continue;
    left_out_ += batch_.size() - i - 1;  // it does not answer
    break;
  }
  events.last = last;
  if (last) events.left_out += std::exchange(left_out_, 0);
  if (last || !events.head.empty() || !events.lines.empty()) Pass(std::move(events));
}

void Timeline::Pass(wire::Events events) {
  if (collector_)
    collector_->Take(world_->self, std::move(events));
  else
    send_(writer(), MakeHeader(0, 0, std::move(events)), nullptr);
}

// ---- Messages.

void Timeline::On(int member, const wire::Ping& ping) {
  if (collector_) send_(member, MakeHeader(0, 0, wire::Pong{ping.asked, SteadyNow(), own_zero_, clock_}), nullptr);
}

void Timeline::On(const wire::Pong& pong) {
  const int64_t back = SteadyNow();
  MutexLock lock(&mu_);
  if (pong.asked != asked_ || asked_ == 0) return;  // too late
  if (clock_ != 0 && pong.clock == clock_)
    offset_.Same();
  else
    offset_.Add(asked_, pong.there, back);
  zero_ = pong.zero;
  if (to_ask_ > 0) {
    --to_ask_;
    asked_ = SteadyNow();
    return send_(writer(), MakeHeader(0, 0, wire::Ping{asked_}), nullptr);
  }
  asked_ = 0;
  changed_.NotifyAll();
}

void Timeline::On(int member, wire::Events events) {
  if (collector_) collector_->Take(member, std::move(events));
}

}  // namespace hvdata
