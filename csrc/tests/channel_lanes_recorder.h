// SPDX-License-Identifier: Apache-2.0
// Lanes under test and everything that came out of them, as text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "channel/lanes.h"

namespace hvdata {

using Texts = std::vector<std::string>;

// A share that says which element and which trainer it is for (-1: any), and of how many rows it is. One of them may be lost
// on the way, or doubled: its number, or -1.
struct Token {
  uint64_t element;
  int trainer;
  int rows = 1;
  int lost = -1, doubled = -1;
};

inline std::shared_ptr<const Share> MakeToken(uint64_t element, int trainer) {
  auto share = std::make_shared<Share>();
  share->bundle = std::make_shared<Token>(Token{element, trainer});
  return share;
}

// What a token is known by; a filler has no rows.
inline proof::Promise PromiseOf(const Token& token, bool filler) {
  std::vector<proof::Fingerprint> rows;
  for (int i = 0; i < token.rows; ++i) {
    const auto seed = static_cast<uint64_t>(token.trainer + 1) + (static_cast<uint64_t>(i) << 32);
    const int times = i == token.lost ? 0 : i == token.doubled ? 2 : 1;
    rows.insert(rows.end(), static_cast<size_t>(times), proof::Hash(&token.element, sizeof(token.element), seed));
  }
  proof::Promise promise;
  if (!filler) promise.rows.Add(rows.data(), rows.size());
  promise.seal = proof::Hash(rows.data(), rows.size() * sizeof(rows[0]), filler ? 1 : 2);
  return promise;
}

inline const Token& TokenOf(const BundlePtr& bundle) { return *static_cast<const Token*>(bundle.get()); }

// A step of elements first, first + 1, ... with one share for each of `shares` trainers; 0: one share for anybody.
inline Step MakeStep(uint64_t first, int shares, uint64_t elements = 1) {
  Step step;
  step.first = first;
  for (uint64_t i = 0; i < elements; ++i) step.elements.push_back(std::make_shared<Token>(Token{first + i, -1}));
  if (shares == 0) step.shares.push_back(MakeToken(first, -1));
  for (int t = 0; t < shares; ++t) step.shares.push_back(MakeToken(first, t));
  return step;
}

// "1<2:7": trainer 1's lane step 2 is element 7; "1<end@3", "1<end@3!13 text", "1<recall", "1 took 7".
class Recorder {
 public:
  LaneOutput Output() {
    LaneOutput output;
    output.data = [this](int trainer, LaneStep step, DealtStep dealt, Position position, const Share& share) {
      const Token& token = TokenOf(share.bundle);
      if (token.trainer >= 0 && token.trainer != trainer) Add(trainer, "<someone else's share");
      if (position.n <= token.element) Add(trainer, "<bad position");
      Add(trainer, "<" + std::to_string(step.n) + ":" + std::to_string(token.element));
      dealt_.push_back(dealt.n);
    };
    output.end = [this](int trainer, LaneStep step, const Outcome& outcome) {
      Add(trainer, "<end@" + std::to_string(step.n) +
                       (outcome.ok() ? "" : "!" + std::to_string(outcome.code) + " " + outcome.message));
    };
    output.recall = [this](int trainer) { Add(trainer, "<recall"); };
    output.taken = [this](int trainer, uint64_t element) { Add(trainer, " took " + std::to_string(element)); };
    return output;
  }

  // What has come out since the last call.
  Texts Take() { return std::exchange(texts_, {}); }
  // The steps dealt that shares were sent with since the last call.
  std::vector<uint64_t> Dealt() { return std::exchange(dealt_, {}); }

 private:
  void Add(int trainer, const std::string& text) { texts_.push_back(std::to_string(trainer) + text); }
  Texts texts_;
  std::vector<uint64_t> dealt_;
};

}  // namespace hvdata
