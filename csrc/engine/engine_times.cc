// SPDX-License-Identifier: Apache-2.0
// The engine of this process: where the time of its channels goes, for itself and for whoever asks.
#include <chrono>
#include <set>

#include "base/json.h"
#include "engine/engine.h"

namespace hvdata {
namespace {

template <typename Sums, typename Does>
int64_t At(const Sums& sums, Does does) {
  return sums[static_cast<size_t>(does)];
}

std::string Json(const TrainerTimes& times) {
  using Does = TrainerDoes;
  return JsonObject()
      .Add("wait", At(times.sums, Does::kWaits))
      .Add("receive", At(times.sums, Does::kReceives))
      .Add("step", At(times.sums, Does::kSteps))
      .Add("steps", times.steps)
      .Add("rows", times.rows)
      .Add("waits", times.waits)
      .Add("queued", times.queued)
      .Add("epochs", times.epochs)
      .Add("window", times.window)
      .Add("first", times.first)
      .Add("waited_for", times.waited_for)
      .Text();
}

std::string Json(const ReaderTimes& times) {
  using Does = ReaderDoes;
  return JsonObject()
      .Add("pipeline", At(times.sums, Does::kPulls))
      .Add("deal", At(times.sums, Does::kDeals))
      .Add("room", At(times.sums, Does::kHasNoRoom))
      .Add("serve", At(times.sums, Does::kServes))
      .Add("elements", times.elements)
      .Add("steps", times.steps)
      .Add("untaken", times.untaken)
      .Add("room_of", times.no_room)
      .Add("room_times_of", times.no_room_times)
      .Text();
}

}  // namespace

// Times in nanoseconds. Readers and trainers are named by their numbers, and lists are by these.
std::string Engine::TimesJson(bool reset) {
  const Member& me = world_.me();
  JsonObject channels;
  for (const auto& [name, account] : channels_.Accounts(reset)) {
    JsonObject options, channel;
    options.Add("batch", static_cast<int>(account.options.batch))
        .Add("schedule", static_cast<int>(account.options.schedule));
    options.Add("prefetch", account.options.prefetch).Add("number", static_cast<int64_t>(account.options.number));
    channel.Put("options", options.Text());
    if (account.trainer) channel.Put("trainer", Json(*account.trainer));
    if (account.reader) channel.Put("reader", Json(*account.reader));
    channels.Put(name, channel.Text());
  }
  JsonObject process;
  process.Add("rank", me.trainer).Add("reader", me.reader).Add("ranks", world_.trainer_count());
  process.Add("sources", world_.source_readers).Add("audience", world_.audience_ranks);
  return process.Put("host", Quoted(me.host)).Put("channels", channels.Text()).Text();
}

// Dedicated ones, whose programs can't ask for it: they are inside serve().
void Engine::ResetReaders() {
  for (const int member : world_.readers) {
    if (!world_.members[static_cast<size_t>(member)].trains())
      post_->Send(member, MakeHeader(0, 0, wire::HowLong{true}));
  }
}

void Engine::OnTimes(int member, const wire::Times& times) {
  MutexLock lock(&mu_);
  times_[member] = times.words;
  changed_.NotifyAll();
}

// Those that have said BYE have told reader 0 before, and may have nothing to add.
std::string Engine::AllTimesJson(std::chrono::milliseconds patience) {
  constexpr auto kLook = std::chrono::milliseconds(10);
  std::set<int> asked;
  {
    MutexLock lock(&mu_);
    for (int member = 0; member < static_cast<int>(world_.members.size()); ++member) {
      if (member == world_.self || (byes_.count(member) && times_.count(member))) continue;
      times_.erase(member);
      asked.insert(member);
    }
  }
  for (const int member : asked) post_->Send(member, MakeHeader(0, 0, wire::HowLong()));
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (bool all = false; !all && std::chrono::steady_clock::now() < deadline;) {
    post_->Fetch();
    MutexLock lock(&mu_);
    all = changed_.WaitFor(&mu_, kLook, [&] {
      mu_.AssertHeld();
      if (broken_) return true;
      for (const int member : asked) {
        if (!times_.count(member)) return false;
      }
      return true;
    });
  }
  std::string json = "[" + TimesJson();
  MutexLock lock(&mu_);
  for (const auto& [member, words] : times_) json += ", " + words;
  return json + "]";
}

}  // namespace hvdata
