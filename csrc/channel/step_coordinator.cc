// SPDX-License-Identifier: Apache-2.0
#include "channel/step_coordinator.h"

#include <algorithm>
#include <string>
#include <vector>

namespace hvdata {

using wire::Header;
using wire::Kind;

namespace {
constexpr uint64_t kAll = ~0ull;
}

StepCoordinator::StepCoordinator(const World* world, Send send) : world_(world), send_(std::move(send)) {}

// How far all may go, and whether the epoch ends there. True when that is news.
bool StepCoordinator::AdvanceLocked(Epoch* epoch, Outcome* outcome) {
  if (epoch->ended) return false;
  uint64_t reach = kAll;  // what every reader has, or can make up
  uint64_t end = kAll;    // nobody goes further
  uint64_t longest = 0;
  bool running = false;
  for (const Reader& r : epoch->readers) {
    if (r.says != kLeft) longest = std::max(longest, r.steps);
    running = running || r.says == kHas;
  }
  for (const Reader& r : epoch->readers) {
    if (r.says == kLeft || (r.says == kFills && r.outcome.ok())) continue;
    reach = std::min(reach, r.steps);
    // Of those that fill only one whose share is really needed, and that can't make it, ends with that error.
    const bool fails = r.says == kFailed || (r.says == kFills && longest > r.steps);
    if (fails && r.steps <= end) {  // an error goes before an end in the same step
      if (outcome->ok() || r.steps < end) *outcome = r.outcome;
      end = r.steps;
    } else if (r.says == kEnded && r.steps < end) {
      *outcome = {};
      end = r.steps;
    }
  }
  // With those steps that all have been given already, though who had them may have left.
  if (!running && end == kAll) end = std::max(longest, epoch->allowed);
  const uint64_t allowed = std::max(epoch->allowed, std::min(reach, end));
  bool ends = allowed >= end;
  if (ends && outcome->ok() && !SparedLocked(*epoch, end)) {
    const auto last = std::max_element(epoch->readers.begin(), epoch->readers.end(),
                                       [](const Reader& a, const Reader& b) { return a.steps < b.steps; });
    if (running) ends = false;  // one may yet have a step more, or an end of its own
    else *outcome = last->lost;
  }
  const bool news = allowed > epoch->allowed || ends;
  epoch->allowed = allowed;
  epoch->ended = ends;
  return news;
}

// Whether the epoch may end well with that many steps, though readers were lost: one was not, or not before it had more.
bool StepCoordinator::SparedLocked(const Epoch& epoch, uint64_t end) {
  return std::any_of(epoch.readers.begin(), epoch.readers.end(), [end](const Reader& r) {
    return r.steps > end || (r.lost.ok() && r.says != kHas);
  });
}

std::vector<int> StepCoordinator::BehindLocked(const Epoch& epoch) {
  std::vector<int> behind;
  for (size_t r = 0; r < epoch.readers.size(); ++r) {
    if (epoch.readers[r].says == kHas && epoch.readers[r].steps == epoch.allowed) behind.push_back(static_cast<int>(r));
  }
  return behind;
}

// Says at once who is behind, and asks these what keeps them: they may be silent.
void StepCoordinator::AskLocked(Epoch* epoch, int reader, const Header& go, Outgoing* out) const {
  epoch->askers.insert(reader);
  std::vector<std::string> names;
  Header h = go;
  for (int r : BehindLocked(*epoch)) {
    names.push_back(world_->ReaderName(r));
    h.a = kExplain;
    out->emplace_back(r, h);
  }
  h.a = kBehind;
  h.text = names.empty() ? "no other reader" : JoinNames(names) + ", which has not";
  out->emplace_back(reader, std::move(h));
}

void StepCoordinator::PassOnLocked(const Epoch& epoch, int reader, const Header& ready, Header go, Outgoing* out) const {
  go.a = kBehind;
  go.b = 1;
  go.text = world_->ReaderName(reader) + ", which has not: " + ready.text;
  for (int to : epoch.askers) out->emplace_back(to, go);
}

// A host that goes on in mid-epoch beside one that begins it anew would have other steps left than that one.
void StepCoordinator::CheckBeginningsLocked(Epoch* epoch, int reader, const Header& header) const {
  const auto says = static_cast<Says>(header.a);
  Reader& r = epoch->readers[static_cast<size_t>(reader)];
  if (r.begun || says == kLeft || says == kLeftForGood || says == kAsks || says == kExplains) return;
  r.begun = true;
  r.from = header.step;
  if (says == kGoesOn) r.goes_on = header.text;
  std::string place;
  std::vector<std::string> anew;
  for (size_t i = 0; i < epoch->readers.size(); ++i) {
    const Reader& one = epoch->readers[i];
    if (!one.begun) continue;
    if (one.goes_on.empty()) anew.push_back(world_->ReaderName(static_cast<int>(i)));
    else if (place.empty() && one.from > 0) place = one.goes_on;
  }
  if (place.empty() || anew.empty()) return;
  r.says = kFailed;
  r.steps = epoch->allowed;
  r.outcome = {kFailedPrecondition, place + "this reader goes on from a checkpoint, but the epoch begins anew on " +
                                        JoinNames(anew) + ": each host's reader has its own place, so restore the iterator "
                                        "on every rank, each from what it saved itself"};
}

void StepCoordinator::OnReady(int reader, const Header& header) {
  Outgoing out;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto says = static_cast<Says>(header.a);
    std::vector<Key> touched;
    if (says == kLeftForGood) {
      gone_[header.channel].insert(reader);
      for (const auto& [key, epoch] : epochs_) {
        if (key.first == header.channel) touched.push_back(key);
      }
    } else {
      touched.push_back({header.channel, header.epoch});
    }
    for (const Key& key : touched) {
      Epoch& epoch = epochs_[key];
      epoch.readers.resize(world_->readers.size());
      for (int r : gone_[header.channel]) epoch.readers[static_cast<size_t>(r)].says = kLeft;
      Reader& r = epoch.readers[static_cast<size_t>(reader)];
      CheckBeginningsLocked(&epoch, reader, header);
      // What comes later may have been overtaken: an end stands, but for the reader's leaving.
      if (r.says == kHas && says != kExplains) r.steps = std::max(r.steps, header.step);
      const Outcome given{static_cast<int>(header.b), header.text};
      if ((says == kLostEnds || says == kLostFills) && r.says == kHas) {
        r.says = says == kLostEnds ? kEnded : kFills;
        r.lost = given;
      } else if (says == kLeft || ((says == kEnded || says == kFills || says == kFailed) && r.says == kHas)) {
        r.says = says;
        r.outcome = given;
      }
      Outcome outcome;
      const bool news = AdvanceLocked(&epoch, &outcome);
      Header h;
      h.kind = Kind::kGo;
      h.channel = key.first;
      h.epoch = key.second;
      h.step = epoch.allowed;
      if (news) {
        epoch.askers.clear();
        Header go = h;
        go.a = epoch.ended ? kEndsThere : kAllHave;
        go.b = outcome.code;
        go.text = outcome.message;
        for (size_t to = 0; to < epoch.readers.size(); ++to) {
          if (epoch.readers[to].says != kLeft) out.emplace_back(static_cast<int>(to), go);
        }
      } else if (says == kAsks) {
        AskLocked(&epoch, reader, h, &out);
      } else if (says == kExplains) {
        PassOnLocked(epoch, reader, header, std::move(h), &out);
      }
      const bool over = std::all_of(epoch.readers.begin(), epoch.readers.end(),
                                    [](const Reader& one) { return one.says == kLeft; });
      if (over) epochs_.erase(key);
    }
  }
  for (auto& [to, h] : out) send_(to, std::move(h));
}

}  // namespace hvdata
