// SPDX-License-Identifier: Apache-2.0
// One reader's book of one epoch: what each share is to be when it is handed out, and what its trainer says that it was.
//
// Not thread-safe, and nothing is sent from here: ReaderEpoch calls everything under its mutex.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "proof/promise.h"
#include "proof/report.h"
#include "wire/messages.h"

namespace hvdata::proof {

// What is to be handed out of a piece of the source: one share per trainer, or (dynamic) one for whoever takes it.
struct Promises {
  std::vector<Yield> elements;
  std::vector<Promise> shares;
};

class Ledger {
 public:
  // `names`: the trainers', for people.
  Ledger(std::vector<std::string> names, plan::Schedule schedule);

  // Where an epoch goes on: with the reader's step `turn` and element number `element`.
  struct Begin {
    uint64_t turn = 0, element = 0;
    Report before = {};                  // what came before; its trainers are these, and others behind them
    std::map<uint64_t, Yield> had = {};  // later ones that don't come again, by number
    bool verified = true;                // the run that had those and shares of later ones has kept an account
  };
  void Start(Begin begin);
  // The next step, made of elements from number `first` on. Trainers of which `had` is true have had their share of it in an
  // earlier run. Without shares: elements of which no trainer gets anything.
  void Deal(uint64_t first, Promises promises, const std::vector<bool>& had);
  // Dynamic: an earlier run has delivered this one.
  void Had(uint64_t element, const Yield& yield) { had_[element] = yield; }
  // The shares of steps beyond those dealt.
  void Fill(std::vector<Promise> shares) { fillers_ = std::move(shares); }
  // What is left for the last steps, and the fillers on these models.
  void Leave(uint64_t first, Promises promises, std::vector<Promise> fillers);
  // An earlier run has given this trainer element number `left` of those, or a filler on its model.
  void HadLeft(int trainer, uint64_t left, bool filler);
  // The last elements of those that were left have no trainer.
  void DropLeft(uint64_t elements);
  // Steps from `turn` on are not delivered: another reader's data has ended, and with it the epoch.
  void DropFrom(uint64_t turn);
  // The trainer takes nothing more.
  void Gone(int trainer) { gone_[static_cast<size_t>(trainer)] = true; }

  // What is wrong with what a trainer says of a share, for people; mostly nothing.
  std::string Heard(int trainer, const wire::Checked& word);
  // The trainer has come to its end, and of its shares so many have not; below 0: so many too many. What is wrong, for people.
  std::string Missing(int trainer, int64_t shares);
  // Whether the trainer has said of every share dealt so far, and of every filler, that it has it.
  bool HasAll(int trainer) const;

  // Up to now. Elements of which a trainer has not had its share are not among those delivered.
  Report Close(uint64_t number, bool complete, std::string why) const;
  // For a checkpoint that goes on with element number `element`, or a later one.
  Bookmark Mark(uint64_t element) const;

 private:
  struct Element {
    Yield yield;
    uint64_t open = 0;  // shares that have not been handed out
    bool unverified = false;
  };
  struct Dealt {
    uint64_t first = 0;  // number of its first element
    size_t elements = 0;
    std::vector<Promise> shares;
    // The element that a share is of, among these. Those of a global batch are all of one; fillers are of none.
    size_t Owner(size_t share) const { return elements == 1 ? 0 : share; }
  };

  Element& At(uint64_t number) { return elements_[static_cast<size_t>(number - first_)]; }
  bool Known(uint64_t number) const { return number >= first_ && number - first_ < elements_.size(); }
  std::string Compare(int trainer, const wire::Checked& word, const Promise& promise);
  std::string WhoseIs(int trainer, const wire::Checked& word, Fingerprint seal) const;
  std::string HeardOfLeft(int trainer, const wire::Checked& word);
  std::string HeardOfTurn(int trainer, const wire::Checked& word);
  std::string HeardOfElement(int trainer, const wire::Checked& word);
  void HandedOut(uint64_t element);
  void KeepShares(uint64_t first, const std::vector<Promise>& shares);
  void Unverified(uint64_t element);
  void Fold();
  void FillGap(uint64_t until);
  uint64_t NextElement() const { return first_ + elements_.size(); }
  uint64_t NextTurn() const { return first_turn_ + turns_.size(); }

  const std::vector<std::string> names_;
  const bool anyone_;  // dynamic: a share is whoever's takes it
  Report report_;      // all folded elements; and the counts
  Report passed_;      // of each trainer's rows and steps, those of folded elements alone
  bool verified_before_ = true;
  uint64_t first_ = 0;            // number of elements_[0]
  std::deque<Element> elements_;  // not folded
  uint64_t first_turn_ = 0;       // of turns_[0]
  uint64_t end_ = ~0ull;          // the turn that DropFrom was given
  std::deque<Dealt> turns_;       // the last ones
  std::vector<uint64_t> next_;    // static: by trainer, the turn whose share comes next
  std::vector<bool> gone_;
  std::map<uint64_t, Promise> open_;  // dynamic: by element
  std::map<uint64_t, Yield> had_;
  std::vector<Promise> fillers_, left_, left_fillers_;
  std::vector<bool> had_left_;
  uint64_t first_left_ = 0;
};

}  // namespace hvdata::proof
