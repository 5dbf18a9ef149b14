// SPDX-License-Identifier: Apache-2.0
// Agreements: every member contributes some bytes to its k-th agreement and gets everybody's. One member, the
// coordinator, collects them and answers all at once; it also names those who have not come.
#ifndef HOROVOD_DATA_MEETING_AGREEMENTS_H_
#define HOROVOD_DATA_MEETING_AGREEMENTS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/outcome.h"
#include "base/world.h"
#include "wire/header.h"

namespace hvdata {

class Agreements {
 public:
  using Send = std::function<void(int member, wire::Header)>;  // may come back to us at once when member is ourselves

  Agreements(const World* world, double stall_seconds, double timeout_seconds, Send send);

  // Contributes to this member's next agreement. `what` names the call in messages.
  int64_t Begin(std::string mine, std::string what);
  // The result of agreement `number` once it is there: (uint64 count, count x uint64 member, uint64 length, bytes) for
  // each different contribution, by first member. nullopt when `slice` is over.
  std::optional<Outcome> Wait(int64_t number, std::chrono::milliseconds slice);

  // Coordinator: agreements that begin from now on get this answer.
  void Refuse(std::string why);

  void OnHello(int member, const wire::Header& header);
  void OnAbsent(const wire::Header& header);
  void OnVerdict(const wire::Header& header);
  // A member that will contribute nothing more.
  void OnGone(int member);
  void Tick();
  void Fail(Outcome outcome);

 private:
  using Clock = std::chrono::steady_clock;
  struct Open {  // on the coordinator
    std::map<int, std::string> contributions;
    std::string what;
    Clock::time_point begun;
    double report = 0;
  };
  struct Reply {
    int64_t number;
    std::vector<int> members;
    wire::Kind kind;
    Outcome outcome;
  };

  std::vector<std::string> AbsentLocked(const Open& open) const;
  void CompleteLocked(int64_t number, std::vector<Reply>* replies);
  void SettleLocked(int64_t number, Outcome outcome, std::vector<Reply>* replies);
  void SendAll(const std::vector<Reply>& replies);

  const World* const world_;
  const double stall_seconds_, timeout_seconds_;
  const Send send_;
  std::mutex mu_;
  std::condition_variable changed_;
  int64_t begun_ = 0;
  std::map<int64_t, Outcome> verdicts_;
  Outcome failed_;
  // On the coordinator.
  std::map<int64_t, Open> open_;
  std::map<int64_t, Outcome> settled_;   // ended with an error before all had come: the answer for those who come late
  std::set<int> gone_;
  std::string refusal_;
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_MEETING_AGREEMENTS_H_
