// SPDX-License-Identifier: Apache-2.0
// The times of this process's channels, by activity, as text. Other processes may ask for it. Python reads it
// (horovod_data/observe/times.py). Each line is a word and numbers. Names may have any characters, so they are in
// hexadecimal.
//
//   process RANK READER RANKS HOST    RANK or READER may be -1
//   sources READER...                 the readers that this process gets batches from
//   serves RANK...                    the ranks that this process deals to
//   channel NAME BATCH SCHEDULE PREFETCH NUMBER EPOCH ROWS STEPS DROPPED
//   trainer ...                       of this channel; see Line(). Times are nanoseconds. Its list is in the order of
//                                     `sources`
//   reader ...                        as `trainer`. Its lists are in the order of `serves`
//   cache BYTES LIMIT UNITS STEPS ELEMENTS LOADED FREED
//                                     of a kept channel (cache="job"). BYTES and LIMIT are of this process, and 0 if it
//                                     keeps nothing. STEPS of ELEMENTS have been loaded; ELEMENTS is -2 if it is
//                                     unknown. LOADED: 1 if these are all, -1 if the load has failed. FREED: the BYTES
//                                     before the channel ended
#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "engine/engine.h"

namespace hvdata {
namespace {

std::string Hex(const std::string& text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string digits;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    digits += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return digits;
}

template <typename... Numbers>
std::string Words(Numbers... numbers) {
  return ((" " + std::to_string(numbers)) + ...);
}

template <typename Numbers>
std::string List(const Numbers& numbers, size_t from = 0) {
  std::string words;
  for (size_t i = from; i < numbers.size(); ++i) words += Words(numbers[i]);
  return words;
}

// The names of these fields are in horovod_data/observe/times.py. The sum of kNothing is left out.
std::string Line(const TrainerTimes& t) {
  return "trainer" + List(t.sums, 1) + Words(t.steps, t.rows, t.waits, t.queued, t.epochs, t.window, t.first) +
         List(t.waited_for) + "\n";
}

std::string Line(const ReaderTimes& r) {
  return "reader" + List(r.sums, 1) + Words(r.elements, r.steps, r.untaken) + List(r.without_credit) +
         List(r.without_credit_times) + "\n";
}

}  // namespace

std::string Engine::Times(bool reset) {
  const Member& me = world_.me();
  std::string text = "process" + Words(me.trainer, me.reader, world_.trainer_count()) + " " + Hex(me.host) + "\n";
  text += "sources" + List(world_.source_readers) + "\nserves" + List(world_.group_trainer_ranks) + "\n";
  for (const auto& [name, account] : channels_.Accounts(reset)) {
    const ChannelOptions& options = account.options;
    const Sink::Tally& tally = account.tally;
    text += "channel " + Hex(name) +
            Words(static_cast<int>(options.batch), static_cast<int>(options.schedule), options.prefetch, options.number,
                  tally.epoch, tally.rows, tally.steps, tally.dropped) +
            "\n";
    // The lists of the other channels are by reader and by rank. The lists of a kept channel are by keeper, so only
    // their sum is reported.
    std::optional<TrainerTimes> trainer = account.trainer;
    std::optional<ReaderTimes> reader = account.reader;
    if (options.view == View::kLoad) trainer.reset();
    if (trainer && options.view == View::kKept) {
      const int64_t all = std::accumulate(trainer->waited_for.begin(), trainer->waited_for.end(), int64_t{0});
      trainer->waited_for.assign(world_.source_readers.size(), 0);
      trainer->waited_for[0] = all;
    }
    if (reader && options.view == View::kLoad) {
      reader->without_credit.assign(world_.group_trainers.size(), 0);
      reader->without_credit_times.assign(world_.group_trainers.size(), 0);
    }
    if (trainer) text += Line(*trainer);
    if (reader) text += Line(*reader);
    if (options.view == View::kKept) {
      const Keeper::Account kept = KeptOf(options.number);
      const int loaded = kept.failed ? -1 : static_cast<int>(kept.loaded);
      text += "cache" +
              Words(kept.bytes, options.cache_bytes, kept.units, kept.steps, options.elements, loaded, kept.freed) +
              "\n";
    }
  }
  if (!reset || me.trainer != 0) return text;
  // The programs of dedicated readers can't reset their times, because they are inside serve().
  for (const int member : world_.readers) {
    if (!world_.members[static_cast<size_t>(member)].trains())
      post_->Send(member, MakeHeader(0, 0, wire::HowLong{true}));
  }
  return text;
}

// Reader 0 also sends the last times of departed members, because they don't answer any more.
void Engine::SendTimes(int member) {
  std::vector<wire::Times> all;
  if (world_.readers[0] == world_.self) {
    MutexLock lock(&mu_);
    for (const int departed : byes_) {
      const auto found = times_.find(departed);
      if (found != times_.end()) all.push_back({departed, found->second});
    }
  }
  all.push_back({world_.self, Times(false)});
  for (wire::Times& times : all) post_->Send(member, MakeHeader(0, 0, std::move(times)));
}

void Engine::OnTimes(const wire::Times& times) {
  if (times.member < 0 || times.member >= static_cast<int64_t>(world_.members.size())) return;
  MutexLock lock(&mu_);
  times_[static_cast<int>(times.member)] = times.text;
  changed_.NotifyAll();
}

std::string Engine::AllTimes(std::chrono::milliseconds patience) {
  constexpr auto kLook = std::chrono::milliseconds(10);
  // The time until reader 0 is asked again. It may have answered before it heard that a rank had departed.
  constexpr auto kAskAgain = std::chrono::milliseconds(200);
  std::set<int> asked;
  {
    MutexLock lock(&mu_);
    for (int member = 0; member < static_cast<int>(world_.members.size()); ++member) {
      if (member == world_.self) continue;
      if (world_.readers[0] == world_.self && byes_.count(member) && times_.count(member)) continue;
      times_.erase(member);
      asked.insert(member);
    }
  }
  for (const int member : asked) post_->Send(member, MakeHeader(0, 0, wire::HowLong()));
  auto ask_again = std::chrono::steady_clock::now() + kAskAgain;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (bool all = false; !all && std::chrono::steady_clock::now() < deadline;) {
    if (world_.readers[0] != world_.self && std::chrono::steady_clock::now() > ask_again) {
      post_->Send(world_.readers[0], MakeHeader(0, 0, wire::HowLong()));
      ask_again += kAskAgain;
    }
    post_->Fetch();
    MutexLock lock(&mu_);
    all = changed_.WaitFor(&mu_, kLook, [&] {
      mu_.AssertHeld();
      const auto answered = [&](int member) { return mu_.AssertHeld(), times_.count(member) > 0; };
      return broken_ || std::all_of(asked.begin(), asked.end(), answered);
    });
  }
  std::string texts = Times(false);
  MutexLock lock(&mu_);
  for (const auto& [member, text] : times_) texts += text;
  return texts;
}

}  // namespace hvdata
