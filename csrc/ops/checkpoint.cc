// SPDX-License-Identifier: Apache-2.0
#include "ops/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "base/place.h"
#include "base/random.h"
#include "ops/bundle.h"
#include "ops/status.h"
#include "ops/tensor_bytes.h"
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tensorflow/core/platform/errors.h"

namespace hvdata {
namespace {

bool CheckReplay() {
  const char* value = std::getenv("HOROVOD_DATA_CHECK_REPLAY");
  return value == nullptr || std::string(value) != "0";
}

std::string Gib(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

absl::Status Damaged() { return absl::DataLossError("a checkpoint of this channel is damaged"); }

}  // namespace

Checkpoint::Checkpoint(Source* source, Input* input)
    : source_(source),
      input_(input),
      prover_(source->config(), source->world().audience_count()),
      epoch_id_(RandomNumber()) {}

std::string Checkpoint::Mode() const {
  const ChannelConfig& c = source_->config();
  std::string mode = c.batch == plan::Batch::kPerRank ? "per_rank" : "global";
  return mode + (c.schedule == plan::Schedule::kDynamic ? ", dynamic" : ", static");
}

std::string Checkpoint::Where() const {
  return hvdata::Place(source_->world().ReaderName(source_->world().me().reader), "channel " + source_->config().name);
}

absl::Status Checkpoint::Capture(State* state) {
  *state = State();
  state->epoch_id = epoch_id_;
  state->trainers = static_cast<uint64_t>(source_->world().audience_count());
  state->mode = Mode();
  state->pulled = input_->pulled();
  state->number = input_->number();
  state->fingerprint = input_->fingerprint();
  state->model = model;
  std::vector<std::unique_ptr<tensorflow::VariantTensorData>> input;
  const absl::Status saved = input_->Save(&input);
  if (!saved.ok()) {
    state->replay = true;
    if (!std::exchange(told_replay_, true)) {
      Log(Where() + "the input can't be saved (" + std::string(saved.message().substr(0, 200)) +
          "): a restore will run it again from its front and pass over what was delivered");
    }
  }
  for (const auto& [number, bundle] : source_->UntakenElements()) {
    state->elements.emplace_back(number, static_cast<Bundle*>(bundle.get())->tensors);
  }
  for (const auto& element : input_->put_back()) state->elements.push_back(element);
  if (source_->config().verify) state->mark = source_->Mark(state->From()).Encode();
  // Counted before it is encoded, as far as it can be: buffers may hold compressed elements.
  uint64_t of_input = 0, of_elements = 0;
  for (const auto& part : input) {
    for (const tensorflow::Tensor& tensor : part->tensors()) of_input += BytesOf(tensor);
  }
  for (const auto& [number, tensors] : state->elements) {
    for (const tensorflow::Tensor& tensor : tensors) of_elements += BytesOf(tensor);
  }
  if (of_input + of_elements > kMostState) return TooLarge(of_input, of_elements);
  of_input = 0;
  for (auto& part : input) {
    state->iterator.emplace_back();
    if (!part->SerializeToString(&state->iterator.back())) return TooLarge(of_input + kMostState, of_elements);
    of_input += state->iterator.back().size();
    if (of_input + of_elements > kMostState) return TooLarge(of_input, of_elements);
    part.reset();
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::TooLarge(uint64_t of_input, uint64_t of_elements) const {
  return absl::InvalidArgumentError(
      Where() + "the state of this iterator takes at least " + Gib(of_input + of_elements) + ", and no more than " +
      Gib(kMostState) + " can be saved: " + Gib(of_elements) + " are batches that some rank has not taken yet, " +
      Gib(of_input) +
      " the input's own (shuffle and prefetch buffers). This save has failed, nothing else: training can go on. Use a "
      "smaller "
      "prefetch=, smaller batches or a smaller shuffle buffer, or save when an epoch is over");
}

absl::Status Checkpoint::StateFor(int trainer, std::string* text) {
  if (!input_->started()) {
    return absl::FailedPreconditionError(
        "this epoch has no input to save: save before its first element is asked for, or "
        "when its end has been seen");
  }
  State state;
  absl::Status status;
  if (source_->config().schedule != plan::Schedule::kDynamic) {
    status = Capture(&state);
  } else {
    if (saved_.empty() || saved_.count(trainer)) {
      saved_.clear();
      status = Capture(&snapshot_);
      snapshot_.snapshot = RandomNumber();
      snapshot_.taken_since.assign(input_->skip().begin(), input_->skip().end());
    }
    if (!status.ok()) return status;
    saved_.insert(trainer);
    state = snapshot_;
    AddTakenSince(trainer, &state);
  }
  if (status.ok()) *text = state.Encode();
  return text->size() > kMostState ? TooLarge(0, text->size())
                                   : status;  // tensors within tensors are not counted before
}

void Checkpoint::AddTakenSince(int trainer, State* state) const {
  const std::vector<uint64_t> taken = source_->TakenSince(trainer);
  state->taken_since.insert(state->taken_since.end(), taken.begin(), taken.end());
}

void Checkpoint::AnswerSaves() {
  for (const SaveRequest& request : source_->TakeSaveRequests()) {
    std::string text;
    const absl::Status status = Caught([&] { return StateFor(static_cast<int>(request.trainer), &text); });
    source_->AnswerSave(request, ToOutcome(status), std::move(text));
  }
}

void Checkpoint::KeepStates() {
  if (saved_.empty()) return;  // static, or nobody has saved in this epoch
  State state = std::move(snapshot_);
  state.elements.clear();
  state.iterator.clear();
  state.mark.clear();
  state.pulled = kAllBehind;  // so that it is not what an epoch starts from
  for (int t = 0; t < source_->world().audience_count(); ++t) {
    State its = state;
    AddTakenSince(t, &its);
    source_->KeepState(t, its.Encode());
  }
}

absl::Status Checkpoint::Merge(const std::map<int, wire::Restore>& handed, State* first, bool* found,
                               std::set<uint64_t>* taken) const {
  *found = false;
  int origin = handed.begin()->first;
  for (const auto& [trainer, hand] : handed) {
    State state;
    if (!hand.words.empty() && !State::Decode(hand.words, &state)) return Damaged();
    if (!hand.words.empty() && state.mode != Mode()) {
      return absl::InvalidArgumentError("a checkpoint of a channel with batch, schedule = " + state.mode +
                                        " was restored into one with " + Mode());
    }
    const bool other =
        *found && !hand.words.empty() && (state.epoch_id != first->epoch_id || state.snapshot != first->snapshot);
    if (other || hand.saved_epoch != handed.at(origin).saved_epoch) {
      return absl::InvalidArgumentError("the states restored by " + source_->world().AudienceName(origin) + " and " +
                                        source_->world().AudienceName(trainer) +
                                        " don't belong together: they were saved in different epochs or checkpoints. "
                                        "Restore the same checkpoint on every rank");
    }
    if (hand.words.empty()) continue;  // saved unused, or when the epoch was over
    taken->insert(state.taken_since.begin(), state.taken_since.end());
    if (*found && state.From() >= first->From()) continue;
    *first = std::move(state);
    *found = true;
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Replay(const State& state) {
  Log(Where() + "runs the input again up to element " + std::to_string(state.pulled) +
      ", because its state could not be saved");
  absl::Status status = input_->Start(state.number);
  if (status.ok()) status = PassOver(state.pulled);
  if (!status.ok() ||
      (input_->pulled() == state.pulled && (input_->fingerprint() == state.fingerprint || !CheckReplay()))) {
    return status;
  }
  return absl::DataLossError(
      "the input can't be restored: its state could not be saved, so it was run again, and the first " +
      std::to_string(state.pulled) +
      " elements are not those that it yielded before the checkpoint was saved; to go on "
      "would lose some elements and repeat others. Give every shuffle a seed, restore in a new process, or use a "
      "pipeline that TensorFlow can save (no Python generators or functions). If the order is the same and only values "
      "differ (random augmentation), set HOROVOD_DATA_CHECK_REPLAY=0");
}

absl::Status Checkpoint::PassOver(uint64_t until, proof::Bookmark* mark) {
  absl::Status status;
  Tensors passed_over;
  for (bool end = false; status.ok() && !end && input_->pulled() < until;) {
    status = input_->cancelled() ? absl::CancelledError("the input was cancelled while it ran again")
                                 : input_->Next(&passed_over, &end);
    const bool news = mark != nullptr && status.ok() && !end && input_->pulled() > mark->first + mark->ahead.size();
    if (news) mark->ahead.push_back(prover_.Delivered(passed_over));
  }
  return status;
}

// One tensor of an element, or of the model of a share, that was saved. Of shares the first axis is not known.
absl::Status Checkpoint::Fits(size_t component, tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                              bool of_share) const {
  const ChannelConfig& c = source_->config();
  tensorflow::PartialTensorShape known;
  if (std::optional<std::vector<int64_t>> dims = c.shapes[component]) {
    if (static_cast<EmptyRule>(c.empty_rules[component]) == EmptyRule::kDenseShape)
      dims = {static_cast<int64_t>(dims->size())};
    else if (of_share && !dims->empty())
      dims->front() = -1;
    known = tensorflow::PartialTensorShape(*dims);
  }
  const auto here = static_cast<tensorflow::DataType>(c.dtypes[component]);
  if (dtype == here && known.IsCompatibleWith(shape)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a checkpoint of other elements was restored into this channel: " + c.component_names[component] + " was " +
      tensorflow::DataTypeString(dtype) + " of shape " + shape.DebugString() + " when it was saved, and is " +
      tensorflow::DataTypeString(here) + " of shape " + known.DebugString() +
      " here. Restore it into a channel of the same pipeline");
}

absl::Status Checkpoint::Fits(const Tensors& element) const {
  const size_t count = source_->config().dtypes.size();
  if (element.size() != count) {
    return absl::InvalidArgumentError("a checkpoint of other elements was restored into this channel: they had " +
                                      std::to_string(element.size()) + " components when they were saved, and have " +
                                      std::to_string(count) +
                                      " here. Restore it into a channel of the "
                                      "same pipeline");
  }
  for (size_t i = 0; i < count; ++i) TF_RETURN_IF_ERROR(Fits(i, element[i].dtype(), element[i].shape(), false));
  return absl::OkStatus();
}

absl::Status Checkpoint::Fits(const State& state) const {
  for (const auto& [number, element] : state.elements) TF_RETURN_IF_ERROR(Fits(element));
  if (!state.model.empty() && state.model.size() != source_->config().dtypes.size()) return Damaged();
  for (size_t i = 0; i < state.model.size(); ++i) {
    const Cutter::Part& part = state.model[i];
    TF_RETURN_IF_ERROR(Fits(i, part.dtype, part.shape, true));
    const auto rule = static_cast<EmptyRule>(source_->config().empty_rules[i]);
    const bool values = rule == EmptyRule::kRowSplits || rule == EmptyRule::kDenseShape;
    if (values && (part.values.dtype() != part.dtype || part.values.shape() != part.shape)) return Damaged();
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Resume(const std::map<int, wire::Restore>& handed, uint64_t due, Resumption* at, bool* over) {
  std::vector<uint64_t>* const positions = &at->positions;
  const auto n = static_cast<uint64_t>(source_->world().audience_count());
  const bool dynamic = source_->config().schedule == plan::Schedule::kDynamic;
  State first;
  std::set<uint64_t> taken;
  bool found = false, uneven = false, running = false, behind = true;
  TF_RETURN_IF_ERROR(Merge(handed, &first, &found, &taken));
  for (const auto& [trainer, hand] : handed) {
    // Of what it has taken since then nothing is left.
    if (dynamic || !found || !hand.words.empty() || hand.position > 0 || first.From() == 0) continue;
    return absl::InvalidArgumentError(
        "the states restored by the ranks don't belong together: that of " + source_->world().AudienceName(trainer) +
        " was saved before its first step of the epoch, and those "
        "of others when it had gone on. Restore a checkpoint that all ranks saved at the same step");
  }
  // Trainers without a state of their own stand where the lowest rank stands that has one.
  positions->assign(n, handed.begin()->second.position);
  for (const auto& [trainer, hand] : handed) {
    (*positions)[static_cast<size_t>(trainer)] = hand.position;
    uneven = uneven || hand.position != handed.begin()->second.position;
    behind = behind && hand.position == kAllBehind;
    running = running || (hand.position != kAllBehind && !hand.words.empty());
  }
  uint64_t from = *std::min_element(positions->begin(), positions->end());
  for (const auto& [trainer, hand] : handed) {
    if (hand.position == from) at->turn = hand.turn;
  }
  at->tail_taken = handed.begin()->second.tail_taken;
  if (dynamic) {  // one sees the end when everything is taken, by whomever
    behind = behind || (!running && uneven);
    from = 0;
    positions->clear();
  }
  *over = behind;
  if (behind) return absl::OkStatus();
  if (!found) return input_->Start(due);
  if (uneven && !dynamic && first.trainers != n) {
    return absl::InvalidArgumentError(
        "the ranks saved at different steps, which can be restored only on the same number of "
        "ranks (" +
        std::to_string(first.trainers) + ", not " + std::to_string(n) + ")");
  }
  TF_RETURN_IF_ERROR(Fits(first));
  epoch_id_ = first.epoch_id;
  model = std::move(first.model);
  const auto fits = [this](const Tensors& element) { return Fits(element); };
  TF_RETURN_IF_ERROR(first.replay ? Replay(first)
                                  : input_->StartFrom(first.iterator, first.number, first.pulled, fits));
  proof::Past& past = at->past;
  past.verified = proof::Bookmark::Is(first.mark);
  if (past.verified && !proof::Bookmark::Decode(first.mark, &past.mark)) return Damaged();
  // A symbolic checkpoint has the input's state of an earlier moment.
  TF_RETURN_IF_ERROR(PassOver(from, past.verified ? &past.mark : nullptr));
  if (input_->pulled() < from) return Damaged();
  std::deque<std::pair<uint64_t, Tensors>> elements;
  for (auto& element : first.elements) {
    if (element.first >= from && !taken.count(element.first))
      elements.push_back(std::move(element));
    else
      taken.erase(element.first);
  }
  for (const auto& [number, tensors] : elements) past.again.insert(number);
  if (past.verified) {
    // The mark may be further: beyond elements that made no step, which nobody's position has passed.
    from = dynamic ? past.mark.first : std::max(from, past.mark.first);
  } else if (dynamic) {
    from = elements.empty() ? input_->pulled() : std::min(input_->pulled(), elements.front().first);
    past.unverified = input_->pulled() - elements.size() + taken.size();
  }
  input_->PutBack(std::move(elements));
  input_->Skip(std::move(taken), [this, verified = past.verified](uint64_t number, const Tensors& e) {
    if (verified) source_->DeliveredBefore(number, prover_.Delivered(e));
  });
  past.from = from;
  return absl::OkStatus();
}

}  // namespace hvdata
