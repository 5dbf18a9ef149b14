// SPDX-License-Identifier: Apache-2.0
#include "timeline/collector.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/place.h"
#include "timeline/lines.h"

namespace hvdata {
namespace {
constexpr uint64_t kMostQueued = 64 << 20;  // bytes, where the file takes them slower than they come
}  // namespace

TimelineCollector::TimelineCollector(const World* world, std::string path, uint64_t most_bytes)
    : world_(world), path_(std::move(path)), most_bytes_(most_bytes) {}

void TimelineCollector::Open() {
  const std::string why = file_.Open(path_);
  if (why.empty()) return Append(TimelineBegin(*world_));
  Log(Place(world_->ReaderName(0)) + "there will be no timeline: " + path_ + " can't be written: " + why +
      ". Name a file that can be (HOROVOD_DATA_TIMELINE)");
}

void TimelineCollector::Append(std::string_view lines) {
  if (!file_.open()) return;
  const std::string why = file_.Append(lines);
  if (why.empty()) return;
  Log(Place(world_->ReaderName(0)) + "the timeline ends here: " + path_ + " can't be written any more: " + why +
      ". Make room there, or name another file (HOROVOD_DATA_TIMELINE)");
}

void TimelineCollector::Take(int member, wire::Events events) {
  MutexLock lock(&mu_);
  left_out_ += events.left_out;
  if (events.last) {
    ended_.insert(member);
    changed_.NotifyAll();
  }
  if (queued_bytes_ + events.lines.size() > kMostQueued) {
    left_out_ += CountEvents(events.lines);
    events.lines.clear();
  }
  queued_bytes_ += events.lines.size();
  queue_.push_back(std::move(events));
}

void TimelineCollector::Write() {
  std::deque<wire::Events> events;
  {
    MutexLock lock(&mu_);
    events.swap(queue_);
    queued_bytes_ = 0;
  }
  for (const wire::Events& one : events) {
    Append(one.head);
    const std::string_view lines = one.lines;
    std::string_view fit = full_ || !file_.open() ? "" : lines;
    if (const uint64_t room = most_bytes_ - std::min(most_bytes_, file_.bytes()); fit.size() > room) {
      fit = fit.substr(0, fit.rfind('\n', room) + 1);
      full_ = true;
    }
    Append(fit);
    if (!file_.open()) fit = "";
    if (fit.size() == lines.size()) continue;
    MutexLock lock(&mu_);
    left_out_ += CountEvents(lines.substr(fit.size()));
  }
}

void TimelineCollector::AwaitLast(std::chrono::milliseconds patience) {
  MutexLock lock(&mu_);
  changed_.WaitFor(&mu_, patience, [this] {
    mu_.AssertHeld();
    return given_up_ || ended_.size() >= world_->members.size();
  });
}

void TimelineCollector::GiveUp() {
  MutexLock lock(&mu_);
  given_up_ = true;
  changed_.NotifyAll();
}

void TimelineCollector::Close() {
  uint64_t left_out;
  {
    MutexLock lock(&mu_);
    left_out = left_out_;
  }
  Append(TimelineEnd(*world_, left_out));
  file_.Close();
}

}  // namespace hvdata
