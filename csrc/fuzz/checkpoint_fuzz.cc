// SPDX-License-Identifier: Apache-2.0
// A reader's state in a checkpoint: its bytes, and an epoch that resumes from it with a pipeline of some more elements.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "deal/checkpoint_state.h"
#include "fuzz/fuzz.h"
#include "plan/resumption.h"
#include "proof/account.h"

namespace hvdata {
namespace {

// static: a share for each of two trainers, of which the first has taken its own. dynamic: one share.
void Deal(uint64_t element, plan::Schedule schedule, proof::Account* book) {
  const bool dynamic = schedule == plan::Schedule::kDynamic;
  book->Deal(element, {{proof::Element()}, std::vector<proof::ShareHash>(dynamic ? 1 : 2)});
  if (!dynamic) book->TakenBefore(0, element, 1);
}

// As Checkpoint::Resume, with the state's numbers alone.
void Resume(const CheckpointState& state, plan::Schedule schedule, uint64_t position) {
  plan::Restored restored;
  restored.position = Position(position);
  restored.has_state = true;
  restored.trainers = state.trainers;
  restored.first = state.From();
  plan::Resumption resumption;
  if (!plan::Resume({restored}, schedule, {"rank 0", "rank 1"}, &resumption).empty()) return;
  if (resumption.over) return;
  plan::Untaken holding;
  holding.pulled = state.pulled;
  for (const auto& [number, element] : state.elements) holding.elements.push_back(number);
  if (!holding.Sound()) return;
  if (holding.pulled < resumption.first) return;
  const std::set<uint64_t> taken(state.taken_since.begin(), state.taken_since.end());
  const plan::Remaining remaining = plan::Remain(holding, resumption, taken);
  proof::Bookmark mark;
  const bool verified = proof::Bookmark::Decode(state.mark, &mark);
  const std::optional<uint64_t> from = plan::ResumeAccount(
      verified ? mark.first : remaining.next, verified ? mark.ahead.size() : 0, holding, resumption, remaining);
  if (!from) return;

  proof::Account book({0, 1}, schedule);
  proof::Past past;
  past.mark = mark;
  past.from = *from;
  past.verified = verified;
  past.again = remaining.again;
  book.GoOn(past);
  for (const uint64_t element : remaining.again) Deal(element, schedule, &book);
  for (uint64_t element = holding.pulled; element < holding.pulled + 4; ++element) {
    if (remaining.skip.count(element) > 0)
      book.DeliveredBefore(element, proof::Element());
    else
      Deal(element, schedule, &book);
  }
  FUZZ_EXPECT(!book.Mark(resumption.first).Encode().empty());
  book.Close(1, true, "");
}

}  // namespace
}  // namespace hvdata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hvdata;
  constexpr std::string_view kFormat = "horovod_data state 5";
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  CheckpointState state;
  if (!CheckpointState::Decode(bytes, &state) &&
      !CheckpointState::Decode(std::string(kFormat) + std::string(bytes), &state)) {
    return 0;
  }
  uint64_t held = 0;
  for (const auto& [number, columns] : state.elements) {
    for (const Column& column : columns) held += BytesOf(column);
  }
  for (const auto& part : state.model) held += BytesOf(part.values);
  FUZZ_EXPECT(held <= 64 * size + 4096);
  const std::string whole = state.Encode();
  FUZZ_EXPECT(bytes == whole || kFormat.data() + std::string(bytes) == whole);
  for (const plan::Schedule schedule : {plan::Schedule::kStatic, plan::Schedule::kDynamic}) {
    for (const uint64_t position : {uint64_t{0}, state.From(), state.pulled, state.pulled + 3, kAllTaken.n})
      Resume(state, schedule, position);
  }
  return 0;
}
