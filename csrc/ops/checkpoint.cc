// SPDX-License-Identifier: Apache-2.0
#include "ops/checkpoint.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>

#include "base/log.h"
#include "ops/bundle.h"
#include "ops/status.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "wire/strings.h"

namespace hvdata {

namespace {

std::string PutU64(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

uint64_t GetU64(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

std::string Pack(const std::vector<std::string>& parts) {
  return PutU64(parts.size()) + wire::EncodeStrings(std::vector<std::string_view>(parts.begin(), parts.end()));
}

bool CheckReplay() {
  const char* value = std::getenv("HOROVOD_DATA_CHECK_REPLAY");
  return value == nullptr || std::string(value) != "0";
}

bool Unpack(std::string_view bytes, std::vector<std::string>* parts) {
  std::vector<std::string_view> views;
  if (bytes.size() < 8) return false;
  if (!wire::DecodeStrings(bytes.substr(8), GetU64(bytes.substr(0, 8)), &views)) return false;
  parts->assign(views.begin(), views.end());
  return true;
}

std::string EncodeTensor(const tensorflow::Tensor& tensor) {
  tensorflow::TensorProto proto;
  tensor.AsProtoTensorContent(&proto);
  return proto.SerializeAsString();
}

bool DecodeTensor(const std::string& bytes, tensorflow::Tensor* tensor) {
  tensorflow::TensorProto proto;
  return proto.ParseFromString(bytes) && tensor->FromProto(proto);
}

// Two strings for each part: its type and shape, as a tensor without values, and its values.
std::vector<std::string> EncodeModel(const Cutter::Model& model) {
  std::vector<std::string> parts;
  for (const Cutter::Part& part : model) {
    tensorflow::TensorProto proto;
    proto.set_dtype(part.dtype);
    part.shape.AsProto(proto.mutable_tensor_shape());
    parts.push_back(proto.SerializeAsString());
    parts.push_back(EncodeTensor(part.values));
  }
  return parts;
}

bool DecodeModel(const std::vector<std::string>& parts, Cutter::Model* model) {
  if (parts.size() % 2) return false;
  for (size_t i = 0; i < parts.size(); i += 2) {
    Cutter::Part part;
    tensorflow::TensorProto proto;
    if (!proto.ParseFromString(parts[i]) || !tensorflow::TensorShape::IsValid(proto.tensor_shape())) return false;
    part.dtype = proto.dtype();
    part.shape = tensorflow::TensorShape(proto.tensor_shape());
    if (!DecodeTensor(parts[i + 1], &part.values)) return false;
    model->push_back(std::move(part));
  }
  return true;
}

}  // namespace

Checkpoint::Checkpoint(Source* source, ReaderEpoch* epoch, Input* input) : source_(source), epoch_(epoch), input_(input) {
  std::random_device random;
  epoch_id_ = static_cast<uint64_t>(random()) << 32 | random();
}

std::string Checkpoint::Mode() const {
  const ChannelConfig& c = source_->config();
  std::string mode = c.batch == plan::Batch::kPerRank ? "per_rank" : "global";
  return mode + (c.schedule == plan::Schedule::kDynamic ? ", dynamic" : ", static");
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
  const absl::Status saved = input_->Save(&state->iterator);
  if (!saved.ok()) {
    state->replay = true;
    if (!std::exchange(told_replay_, true)) {
      Log("[" + source_->world().ReaderName(source_->world().me().reader) + ", channel " + source_->config().name +
          "] the input can't be saved (" + std::string(saved.message().substr(0, 200)) +
          "): a restore will run it again from its front and pass over what was delivered");
    }
  }
  for (const auto& [number, bundle] : epoch_->UntakenElements()) {
    state->elements.emplace_back(number, static_cast<Bundle*>(bundle.get())->tensors);
  }
  for (const auto& element : input_->put_back()) state->elements.push_back(element);
  return absl::OkStatus();
}

void Checkpoint::AnswerSaves() {
  const bool dynamic = source_->config().schedule == plan::Schedule::kDynamic;
  for (const SaveRequest& request : epoch_->TakeSaveRequests()) {
    State state;
    absl::Status status;
    if (!input_->started()) {
      status = absl::FailedPreconditionError("this epoch has no input to save: save before its first element is asked "
                                             "for, or when its end has been seen");
    } else if (!dynamic) {
      status = Capture(&state);
    } else {
      if (saved_.empty() || saved_.count(request.trainer)) {
        const uint64_t number = snapshot_.snapshot + 1;
        epoch_->ForgetTaken();
        status = Capture(&snapshot_);
        snapshot_.snapshot = number;
        saved_.clear();
      }
      saved_.insert(request.trainer);
      state = snapshot_;
      state.taken_since = epoch_->TakenSince(request.trainer);
    }
    epoch_->AnswerSave(request, ToOutcome(status), status.ok() ? Encode(state) : "");
  }
}

void Checkpoint::KeepLastWords() {
  if (saved_.empty()) return;  // static, or nobody has saved in this epoch
  State state = std::move(snapshot_);
  state.elements.clear();
  state.iterator.clear();
  state.pulled = kAllBehind;  // so that it is not what an epoch starts from
  for (int t = 0; t < source_->world().audience_count(); ++t) {
    state.taken_since = epoch_->TakenSince(t);
    epoch_->KeepLastWords(t, Encode(state));
  }
}

std::string Checkpoint::Encode(const State& state) {
  std::vector<std::string> parts = {"horovod_data state 3",    PutU64(state.epoch_id), PutU64(state.snapshot),
                                    PutU64(state.trainers),    state.mode,             PutU64(state.pulled),
                                    PutU64(state.replay),      PutU64(state.number),   PutU64(state.fingerprint),
                                    Pack(state.iterator)};
  std::vector<std::string> taken;
  for (uint64_t number : state.taken_since) taken.push_back(PutU64(number));
  parts.push_back(Pack(taken));
  parts.push_back(Pack(EncodeModel(state.model)));
  for (const auto& [number, tensors] : state.elements) {
    std::vector<std::string> element = {PutU64(number)};
    for (const tensorflow::Tensor& tensor : tensors) {
      element.push_back(EncodeTensor(tensor));
    }
    parts.push_back(Pack(element));
  }
  return Pack(parts);
}

bool Checkpoint::Decode(const std::string& bytes, State* state) {
  std::vector<std::string> parts, taken, model;
  constexpr size_t kFixed = 12;
  if (!Unpack(bytes, &parts) || parts.size() < kFixed || parts[0] != "horovod_data state 3") return false;
  state->epoch_id = GetU64(parts[1]);
  state->snapshot = GetU64(parts[2]);
  state->trainers = GetU64(parts[3]);
  state->mode = parts[4];
  state->pulled = GetU64(parts[5]);
  state->replay = GetU64(parts[6]) != 0;
  state->number = GetU64(parts[7]);
  state->fingerprint = GetU64(parts[8]);
  if (!Unpack(parts[9], &state->iterator) || !Unpack(parts[10], &taken)) return false;
  for (const std::string& number : taken) state->taken_since.push_back(GetU64(number));
  if (!Unpack(parts[11], &model) || !DecodeModel(model, &state->model)) return false;
  for (size_t i = kFixed; i < parts.size(); ++i) {
    std::vector<std::string> element;
    if (!Unpack(parts[i], &element) || element.empty()) return false;
    Tensors tensors;
    for (size_t k = 1; k < element.size(); ++k) {
      tensorflow::Tensor tensor;
      if (!DecodeTensor(element[k], &tensor)) return false;
      tensors.push_back(std::move(tensor));
    }
    state->elements.emplace_back(GetU64(element[0]), std::move(tensors));
  }
  return true;
}

absl::Status Checkpoint::Merge(const std::map<int, wire::Restore>& handed, State* first, bool* found,
                               std::set<uint64_t>* taken) const {
  *found = false;
  int origin = handed.begin()->first;
  for (const auto& [trainer, hand] : handed) {
    State state;
    if (!hand.words.empty() && !Decode(hand.words, &state)) {
      return absl::DataLossError("a checkpoint of this channel is damaged");
    }
    if (!hand.words.empty() && state.mode != Mode()) {
      return absl::InvalidArgumentError("a checkpoint of a channel with batch, schedule = " + state.mode +
                                        " was restored into one with " + Mode());
    }
    const bool other = *found && !hand.words.empty() &&
                       (state.epoch_id != first->epoch_id || state.snapshot != first->snapshot);
    if (other || hand.saved_epoch != handed.at(origin).saved_epoch) {
      return absl::InvalidArgumentError("the states restored by " + source_->world().AudienceName(origin) + " and " +
                                        source_->world().AudienceName(trainer) +
                                        " don't belong together: they were saved in different epochs or checkpoints. "
                                        "Restore the same checkpoint on every rank");
    }
    if (hand.words.empty()) continue;  // saved unused, or when the epoch was over
    taken->insert(state.taken_since.begin(), state.taken_since.end());
    if (*found && state.pulled >= first->pulled) continue;
    *first = std::move(state);
    *found = true;
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Replay(const State& state) {
  Log("[" + source_->world().ReaderName(source_->world().me().reader) + ", channel " + source_->config().name +
      "] runs the input again up to element " + std::to_string(state.pulled) + ", because its state could not be saved");
  absl::Status status = input_->Start(state.number);
  bool end = false;
  Tensors passed_over;
  while (status.ok() && !end && input_->pulled() < state.pulled) status = input_->Next(&passed_over, &end);
  if (!status.ok() || (!end && (input_->fingerprint() == state.fingerprint || !CheckReplay()))) return status;
  return absl::DataLossError(
      "the input can't be restored: its state could not be saved, so it was run again, and the first " +
      std::to_string(state.pulled) + " elements are not those that it yielded before the checkpoint was saved; to go on "
      "would lose some elements and repeat others. Give every shuffle a seed, restore in a new process, or use a "
      "pipeline that TensorFlow can save (no Python generators or functions). If the order is the same and only values "
      "differ (random augmentation), set HOROVOD_DATA_CHECK_REPLAY=0");
}

absl::Status Checkpoint::Resume(const std::map<int, wire::Restore>& handed, Place* place, bool* over) {
  std::vector<uint64_t>* const positions = &place->positions;
  const auto n = static_cast<uint64_t>(source_->world().audience_count());
  const bool dynamic = source_->config().schedule == plan::Schedule::kDynamic;
  State first;
  std::set<uint64_t> taken;
  bool found = false, uneven = false, running = false, behind = true;
  const absl::Status merged = Merge(handed, &first, &found, &taken);
  if (!merged.ok()) return merged;
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
    if (hand.position == from) place->turn = hand.turn;
  }
  place->tail_taken = handed.begin()->second.tail_taken;
  if (dynamic) {  // one sees the end when everything is taken, by whomever
    behind = behind || (!running && uneven);
    from = 0;
    positions->clear();
  }
  *over = behind;
  if (behind) return absl::OkStatus();
  if (!found) return input_->Start();
  if (uneven && !dynamic && first.trainers != n) {
    return absl::InvalidArgumentError("the ranks saved at different steps, which can be restored only on the same number of "
                                      "ranks (" + std::to_string(first.trainers) + ", not " + std::to_string(n) + ")");
  }
  epoch_id_ = first.epoch_id;
  model = std::move(first.model);
  const absl::Status status = first.replay ? Replay(first) : input_->StartFrom(first.iterator, first.pulled);
  if (!status.ok()) return status;
  std::deque<std::pair<uint64_t, Tensors>> elements;
  for (auto& element : first.elements) {
    if (element.first >= from && !taken.count(element.first)) elements.push_back(std::move(element));
    else taken.erase(element.first);
  }
  input_->PutBack(std::move(elements));
  input_->Skip(std::move(taken));
  return absl::OkStatus();
}

}  // namespace hvdata
