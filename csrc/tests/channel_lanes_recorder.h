// SPDX-License-Identifier: Apache-2.0
// Runs lanes under test, and records as text what they emit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "channel/lanes.h"

namespace hvdata {

using Lines = std::vector<std::string>;

// The content of a share of one row: its element, and its trainer (-1 for any).
struct Token {
  uint64_t element;
  int trainer;
};

inline std::shared_ptr<const Share> MakeToken(uint64_t element, int trainer) {
  auto share = std::make_shared<Share>();
  share->bundle = std::make_shared<Token>(Token{element, trainer});
  return share;
}

// A filler has no rows.
inline proof::ShareHash HashOf(const Token& token, bool filler) {
  const proof::Fingerprint row =
      proof::Hash(&token.element, sizeof(token.element), static_cast<uint64_t>(token.trainer + 1));
  proof::ShareHash made;
  if (!filler) made.data.Add(row);
  made.hash = proof::Hash(&row, sizeof(row), filler ? 1 : 2);
  return made;
}

inline const Token& TokenOf(const BundlePtr& bundle) { return *static_cast<const Token*>(bundle.get()); }

// Makes a step of the elements first, first + 1, ... with one share for each of `shares` trainers. With 0 it has one
// share for any trainer.
inline Step MakeStep(uint64_t first, int shares, uint64_t elements = 1) {
  Step step;
  step.first = first;
  for (uint64_t i = 0; i < elements; ++i) step.elements.push_back(std::make_shared<Token>(Token{first + i, -1}));
  if (shares == 0) step.shares.push_back(MakeToken(first, -1));
  for (int t = 0; t < shares; ++t) step.shares.push_back(MakeToken(first, t));
  return step;
}

// With its hashes and numbers of rows, as in a verified channel. A step without elements has fillers.
inline Step Hashed(Step step) {
  step.hashes.elements.resize(step.elements.size());
  for (auto& share : step.shares) {
    step.hashes.shares.push_back(HashOf(TokenOf(share->bundle), step.elements.empty()));
    auto counted = std::make_shared<Share>(*share);
    counted->rows = step.hashes.shares.back().data.rows;
    share = std::move(counted);
  }
  return step;
}

// What lanes do, as calls of a test's.
struct LaneCalls : LaneOutput {
  std::function<void(int trainer, LaneStep, DealtStep, const Step&)> data = [](int, LaneStep, DealtStep, const Step&) {
  };
  std::function<void(int trainer, LaneStep, const Outcome&)> end = [](int, LaneStep, const Outcome&) {};
  std::function<void(int trainer)> recall = [](int) {};
  std::function<void(int trainer, uint64_t element)> taken = [](int, uint64_t) {};

  void Send(int trainer, LaneStep step, DealtStep number, const Step& dealt) override {
    data(trainer, step, number, dealt);
  }
  void SendEnd(int trainer, LaneStep step, const Outcome& outcome) override { end(trainer, step, outcome); }
  void Recall(int trainer) override { recall(trainer); }
  void Acknowledged(int trainer, const Step* dealt, const wire::Received*) override { taken(trainer, dealt->first); }
  void PassedOver(int, const Step&) override {}
  void LeftOut(const Step&) override {}
};

// Lanes with a Credit of their own. `bytes`: of a lane, where the windows fit themselves.
inline std::shared_ptr<Lanes> LanesOf(bool dynamic, Credit its, LaneOutput* output, bool gated = false) {
  struct Both {
    Credit credit;
    std::unique_ptr<Lanes> lanes;
  };
  auto both = std::make_shared<Both>(Both{std::move(its), nullptr});
  both->lanes = dynamic ? MakeDynamicLanes(output, &both->credit) : MakeStaticLanes(gated, output, &both->credit);
  return {both, both->lanes.get()};
}
inline std::shared_ptr<Lanes> StaticLanesOf(int trainers, uint64_t limit, bool gated, LaneOutput* output,
                                            uint64_t bytes = 0) {
  return LanesOf(false, Credit(static_cast<size_t>(trainers), limit, bytes), output, gated);
}
inline std::shared_ptr<Lanes> DynamicLanesOf(int trainers, LaneOutput* output, uint64_t bytes = 0) {
  return LanesOf(true, Credit(static_cast<size_t>(trainers), 0, bytes), output);
}

// "1<2:7": trainer 1's lane step 2 is element 7; "1<end@3", "1<end@3!13 text", "1<recall", "1 took 7".
class Recorder : public LaneCalls {
 public:
  Recorder() {
    data = [this](int trainer, LaneStep step, DealtStep number, const Step& dealt) {
      const Token& token = TokenOf(dealt.ShareOf(trainer).bundle);
      if (token.trainer >= 0 && token.trainer != trainer) Add(trainer, "<someone else's share");
      if (dealt.position().n <= token.element) Add(trainer, "<bad position");
      Add(trainer, "<" + std::to_string(step.n) + ":" + std::to_string(token.element));
      dealt_.push_back(number.n);
    };
    end = [this](int trainer, LaneStep step, const Outcome& outcome) {
      Add(trainer, "<end@" + std::to_string(step.n) +
                       (outcome.ok() ? "" : "!" + std::to_string(outcome.code) + " " + outcome.message));
    };
    recall = [this](int trainer) { Add(trainer, "<recall"); };
    taken = [this](int trainer, uint64_t element) { Add(trainer, " took " + std::to_string(element)); };
  }

  // What has come out since the last call.
  Lines Take() { return std::exchange(texts_, {}); }
  // The steps dealt that shares were sent with since the last call.
  std::vector<uint64_t> Dealt() { return std::exchange(dealt_, {}); }

 private:
  void Add(int trainer, const std::string& text) { texts_.push_back(std::to_string(trainer) + text); }
  Lines texts_;
  std::vector<uint64_t> dealt_;
};

}  // namespace hvdata
