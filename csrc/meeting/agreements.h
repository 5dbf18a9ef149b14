// SPDX-License-Identifier: Apache-2.0
// In an agreement every member contributes a line, and gets the contributions of all members. A member's k-th
// contribution belongs to the k-th agreement. The coordinator, reader 0, collects the contributions, and answers all
// members at once. It also logs which members have not come.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/mutex.h"
#include "base/outcome.h"
#include "base/patience.h"
#include "base/world.h"
#include "mail/share.h"

namespace hvdata {

class Agreements {
 public:
  Agreements(const World* world, double stall_seconds, double timeout_seconds, Send send);

  // Contributes to this member's next agreement, and returns its number. `what` names the call in texts.
  int64_t Begin(std::string mine, std::string what);
  // Waits for the result of agreement `number`. The result has a line for each different contribution, in the order of
  // their first members. The line has each member and a space, then a tab, then the contribution. nullopt: the result
  // does not come within `slice`.
  std::optional<Outcome> Wait(int64_t number, std::chrono::milliseconds slice);

  // On the coordinator: answers all current and later agreements with this error.
  void Refuse(std::string why);

  void On(int member, const wire::Hello& hello);
  void On(int member, const wire::Verdict& verdict);
  // Call it when `member` makes no more contributions.
  void OnDeparted(int member);
  void Tick();
  void Fail(Outcome outcome);

 private:
  struct Meeting {
    std::string what;
    Patience patience;
    std::map<int, std::string> contributions = {};  // on the coordinator
  };

  void SendTo(int member, wire::Message message) const;
  void SendToAll(const Meeting& meeting, const wire::Message& message) const;
  std::optional<Outcome> Unanswered(int64_t number) REQUIRES(mu_);
  std::string Names(const Meeting& meeting, bool present) const;
  void EndIfDecided(int64_t number) REQUIRES(mu_);
  void Conclude(int64_t number, Outcome outcome) REQUIRES(mu_);

  const World* const world_;
  const double stall_seconds_, timeout_seconds_;
  const Send send_;
  Mutex mu_;
  CondVar changed_;
  int64_t begun_ GUARDED_BY(mu_) = 0;
  std::map<int64_t, Meeting> waits_ GUARDED_BY(mu_);  // begun here and not answered yet; empty on the coordinator
  std::map<int64_t, Outcome> verdicts_ GUARDED_BY(mu_);
  Outcome failed_ GUARDED_BY(mu_);
  // Only the coordinator uses these.
  std::map<int64_t, Meeting> meetings_ GUARDED_BY(mu_);
  std::map<int64_t, Outcome> settled_ GUARDED_BY(mu_);  // agreements that ended with an error before all members came
  std::set<int> departed_ GUARDED_BY(mu_);
  std::string refusal_ GUARDED_BY(mu_);
};

}  // namespace hvdata
