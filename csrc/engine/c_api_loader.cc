// SPDX-License-Identifier: Apache-2.0
// The C functions for programs without TensorFlow: a trainer's iterators, and a reader's Python source. They follow the
// rules of c_api.cc.
#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arena/copy.h"
#include "arena/write_fault.h"
#include "base/exceptions.h"
#include "base/fork.h"
#include "base/interrupts.h"
#include "base/log.h"
#include "deal/dealer.h"
#include "engine/c_api.h"
#include "engine/engine.h"
#include "engine/mpi_process.h"
#include "engine/share_iterator.h"
#include "wire/codec.h"
#include "wire/strings.h"

// A tensor. The memory of texts (dtype kText) is in the form of wire/strings.h.
struct hvdata_column {
  int32_t dtype, ndim;
  const int64_t* dims;
  const void* data;
  uint64_t bytes;
  // Of a share's column that has bytes, otherwise null. The program sets it to null, and gives it to hvdata_release() once.
  void* owner;
};

struct hvdata_iterator {
  std::shared_ptr<hvdata::Sink> sink;
  uint32_t channel = 0;
  std::unique_ptr<hvdata::ShareIterator> shares;
  bool writes = false;  // the program may write into its columns
  // What the last hvdata_iterator_next has given.
  hvdata::Columns columns;
  std::vector<hvdata_column> given;

  ~hvdata_iterator() { Clear(); }
  // Releases the columns of the last share that the program has not taken over. A signal's handler may have raised first.
  void Clear();
};

// A source in Python. Its functions are called on the thread of hvdata_deal. They return 0. After an error a function
// calls hvdata_input_failed(), and returns the code that it has passed.
struct hvdata_input {
  // Makes an iterator, at the first element. `number`: of the epoch over all runs, from 0.
  int (*start)(uint64_t number);
  // Makes an iterator that continues from a state of `save`.
  int (*start_from)(const char* state, size_t n, uint64_t number);
  // Gives the columns of the next element. They are valid until the next call of any of these functions. *count = -1:
  // there is no element.
  int (*next)(const hvdata_column** columns, int* count);
  // Gives the state after the last element. *n = 0: the source has no state.
  int (*save)(const char** state, size_t* n);
  void (*close)(void);
};

namespace hvdata {
namespace {

// A numpy array refuses to be written. A torch tensor can't refuse.
constexpr char kWritten[] =
    "this program writes into a batch of loader(), which is read-only memory, and dies by that. Pass writable=True, or "
    "make a new tensor: x = x + 1 in place of x.add_(1)";

constexpr std::string_view kFormat = "horovod_data loader 1";

thread_local Outcome input_failure;     // see hvdata_input_failed
thread_local std::string last_place;    // of the last hvdata_iterator_* call that failed
thread_local std::string loader_state;  // of the last hvdata_iterator_save

using Owner = std::shared_ptr<const void>;

// As Run, but the error's text has no place. hvdata_last_place() has it.
template <typename Body>
int RunPlaced(Body body) {
  return Run([&] {
    const Outcome outcome = body();
    last_place = outcome.place.Text();
    return Outcome(outcome.code, outcome.message);
  });
}

// Does the same. kPending: a SIGINT has ended a wait of `body`, and the program calls again.
template <typename Body>
int RunInterruptible(Body body) {
  const uint64_t interrupts = Interrupts();
  const int code = RunPlaced(body);
  return code == kCancelled && interrupts != Interrupts() ? kPending : code;
}

// ---- States.

template <typename Codec, typename S>
void Fields(Codec* codec, S& s) {
  wire::Field(codec, "epoch", s.epoch), wire::Field(codec, "number", s.number);
  wire::Field(codec, "trainers", s.trainers), wire::Field(codec, "tail", s.tail_taken);
  codec->template List<uint32_t>("lanes", s.lanes, ~0u, 3 * sizeof(uint64_t));
  for (auto& lane : s.lanes) {
    wire::Field(codec, "position", lane.position), wire::Field(codec, "turn", lane.turn);
    codec->Text("state", lane.reader_state);
  }
}

std::string Encode(const SinkState& state) {
  size_t large = kFormat.size();
  for (const SinkState::Lane& lane : state.lanes) large += lane.reader_state.size() + 64;
  std::string text;
  text.reserve(large + 64);
  text += kFormat;
  wire::Writer writer(&text);
  writer.Int("kind", static_cast<uint64_t>(state.kind));
  Fields(&writer, state);
  return text;
}

Outcome Decode(std::string_view bytes, SinkState* state) {
  const Outcome damaged(kDataLoss, "a state of this loader is damaged, or is none. Restore another one");
  if (bytes.substr(0, kFormat.size()) != kFormat) return damaged;
  wire::Reader reader(bytes.substr(kFormat.size()));
  uint64_t kind = 0;
  reader.Int("kind", kind);
  if (kind > SinkState::kExhausted) return damaged;
  state->kind = static_cast<SinkState::Kind>(kind);
  Fields(&reader, *state);
  return reader.ok() && reader.rest().empty() ? Outcome() : damaged;
}

// ---- Shares.

// The texts in one block, in the form of wire/strings.h.
Block EncodedTexts(const Column& column) {
  const auto* const texts = column.as<std::string_view>();
  const std::vector<std::string_view> views(texts, texts + column.count());
  Block block = NewBlock(wire::EncodedSize(views));
  if (block.size > 0) wire::EncodeStringsTo(views, const_cast<char*>(block.data));
  return block;
}

Outcome Give(Columns columns, hvdata_iterator* iterator) {
  for (Column& column : columns) {
    if (column.texts())
      column.memory = EncodedTexts(column);
    else if (iterator->writes && column.shared)
      column = Copy(column);
  }
  iterator->columns = std::move(columns);
  for (Column& column : iterator->columns) {
    hvdata_column given{column.dtype,       static_cast<int32_t>(column.dims.size()),
                        column.dims.data(), column.memory.data,
                        column.memory.size, nullptr};
    iterator->given.push_back(given);
    if (given.bytes > 0) iterator->given.back().owner = new Owner(std::exchange(column.memory.owner, nullptr));
  }
  return {};
}

// ---- A Python source.

Outcome InputFailure(int code) {
  Outcome failure = std::exchange(input_failure, {});
  if (failure.ok()) failure = {code, "the source has failed without a text"};
  return failure;
}

// Calls a function of Python. Up to Python 3.13, a thread that needs the GIL after the end of Python is ended: its stack is
// unwound. Here that would end the process, because destructors on the stack need the GIL again. So the thread waits for
// the end of the process, as in Python 3.14.
template <typename Call>
auto Called(Call call) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

class CallbackPipeline : public Pipeline {
 public:
  CallbackPipeline(const hvdata_input* input, ArenaPtr arena) : input_(*input), arena_(std::move(arena)) {}
  ~CallbackPipeline() override { CallbackPipeline::Close(); }

  Outcome Start(uint64_t number) override {
    return Started(number, Called([&] { return input_.start(number); }));
  }
  Outcome StartFrom(const std::vector<std::string>& saved, uint64_t number) override {
    if (saved.size() != 1) return {kDataLoss, "a checkpoint of a channel's input is damaged, or of another input"};
    const std::string& state = saved[0];
    return Started(number, Called([&] { return input_.start_from(state.data(), state.size(), number); }));
  }
  bool started() const override { return started_; }
  uint64_t number() const override { return number_; }

  Outcome Next(Columns* element, bool* end) override {
    if (cancelled()) return {kCancelled, "the input was cancelled"};
    const hvdata_column* columns = nullptr;
    int count = 0;
    if (const int code = Called([&] { return input_.next(&columns, &count); }); code != kOk) return InputFailure(code);
    *end = count < 0;
    for (int i = 0; i < count; ++i) HVDATA_RETURN_IF_ERROR(Copy(columns[i], &element->emplace_back()));
    return {};
  }

  Outcome Save(uint64_t most, std::vector<std::string>* saved, uint64_t* bytes) override {
    const char* state = nullptr;
    size_t size = 0;
    if (const int code = Called([&] { return input_.save(&state, &size); }); code != kOk) return InputFailure(code);
    if (size == 0) return {kFailedPrecondition, "the source has no state_dict() or get_state()"};
    *bytes += size;
    if (size <= most) saved->emplace_back(state, size);
    return {};
  }

  std::function<void()> Canceller() const override {
    return [cancelled = cancelled_] { *cancelled = true; };
  }
  bool cancelled() const override { return *cancelled_; }
  void Close() override {
    *cancelled_ = true;
    if (!std::exchange(closed_, true)) Called([this] { input_.close(); });
  }
  std::shared_ptr<void> Traced(const char*, const std::string&, std::optional<uint64_t>) const override {
    return nullptr;
  }

 private:
  Outcome Started(uint64_t number, int code) {
    if (code != kOk) return InputFailure(code);
    number_ = number;
    started_ = true;
    return {};
  }

  // The columns of the source are valid until its next call only.
  Outcome Copy(const hvdata_column& given, Column* column) const {
    const std::vector<int64_t> dims(given.dims, given.dims + given.ndim);
    const char* const data = static_cast<const char*>(given.data);
    if (given.dtype != kText) {
      *column = New(given.dtype, dims, arena_);
      if (column->memory.size != given.bytes) return {kInternal, "a column of the source has another size"};
      if (given.bytes > 0) CopyOut(column->make<char>(), data, given.bytes);
      return {};
    }
    const auto bytes = std::make_shared<const std::string>(data, given.bytes);
    int64_t count = 0;
    std::vector<std::string_view> texts;
    if (!wire::CountElements(dims, &count) || !wire::DecodeStrings(*bytes, static_cast<size_t>(count), &texts))
      return {kInternal, "a column of the source holds no texts"};
    *column = Texts(dims, std::move(texts), bytes);
    return {};
  }

  const hvdata_input input_;
  const ArenaPtr arena_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  bool started_ = false, closed_ = false;
  uint64_t number_ = 0;
};

}  // namespace
}  // namespace hvdata

using namespace hvdata;  // NOLINT: this file is the C interface of that namespace

void hvdata_iterator::Clear() {
  if (InForkedChild()) return;  // the memory belongs to the parent, too
  for (const hvdata_column& column : given) delete static_cast<Owner*>(column.owner);
  given.clear();
}

// All other symbols of this library are hidden.
#pragma GCC visibility push(default)

extern "C" {

// The place of the last error of hvdata_iterator_* on this thread. hvdata_last_error() has its text without the place.
const char* hvdata_last_place(void) { return last_place.c_str(); }

// ---- Trainers.

// Makes an iterator for the next epoch of the channel. It uses the channel until hvdata_iterator_drop. `name`: of the
// channel. `writes`: the program may write into its columns, so they must not be memory that the pipeline uses again.
int hvdata_iterator_new(uint32_t channel, const char* name, int writes, hvdata_iterator** iterator) {
  return RunPlaced([&]() -> Outcome {
    auto made = std::make_unique<hvdata_iterator>();
    HVDATA_RETURN_IF_ERROR(UseChannel(channel, name, &made->sink));
    made->channel = channel;
    made->writes = writes != 0;
    made->shares = std::make_unique<ShareIterator>(made->sink, name);
    if (const auto engine = Engine::Current()) {
      ExplainWriteFaults("horovod_data: " + Placed(engine->world().Here(), kWritten));
    }
    *iterator = made.release();
    return {};
  });
}

// Waits for the next share. *count = -1: the epoch is over. The columns are valid until the next call for this
// iterator, and their memory until hvdata_release(). kPending: Ctrl-C has ended the wait. The next call waits for the
// same share.
int hvdata_iterator_next(hvdata_iterator* iterator, hvdata_column** columns, int* count) {
  const int code = RunPlaced([&] {
    iterator->Clear();
    bool end = false;
    const Outcome outcome =
        iterator->shares->Next([iterator](const Columns& share) { return Give(share, iterator); }, &end);
    *columns = iterator->given.data();
    *count = end ? -1 : static_cast<int>(iterator->given.size());
    return outcome;
  });
  return code == kCancelled && !iterator->shares->over() ? kPending : code;  // the source's errors may have that code
}

// Gives the state of the iterator's epoch, for this rank. The bytes are valid until this thread's next call. kPending:
// Ctrl-C has ended the wait for the readers. Call again.
int hvdata_iterator_save(hvdata_iterator* iterator, const void** bytes, size_t* n) {
  return RunInterruptible([&] {
    SinkState state;
    Outcome outcome = iterator->shares->Save(&state);
    if (outcome.ok()) loader_state = Encode(state), *bytes = loader_state.data(), *n = loader_state.size();
    return outcome;
  });
}

// Makes the iterator resume from a state. *over = 1: the epoch of that state was over. kPending: as above.
int hvdata_iterator_restore(hvdata_iterator* iterator, const char* bytes, size_t n, int* over) {
  return RunInterruptible([&]() -> Outcome {
    SinkState state;
    HVDATA_RETURN_IF_ERROR(Decode({bytes, n}, &state));
    *over = state.kind == SinkState::kExhausted ? 1 : 0;
    return iterator->shares->Restore(state);
  });
}

void hvdata_iterator_drop(hvdata_iterator* iterator) {
  if (InForkedChild()) return;  // a thread that the child does not have may hold a lock for ever
  const uint32_t channel = iterator->channel;
  const bool uses = iterator->sink != nullptr;
  (void)Run([&] { delete iterator; });
  if (uses) WithEngine([&](Engine& engine) { engine.UnuseChannel(channel); });
}

// Frees the owner of a share's column, and the column's memory with its last owner. Any thread may call it, also after
// hvdata_stop.
void hvdata_release(void* owner) {
  if (InForkedChild()) return;  // the memory belongs to the parent, too
  (void)Run([&] { delete static_cast<Owner*>(owner); });
}

// ---- Readers.

// Deals one epoch that hvdata_source_wait has returned, and returns when all trainers have ended it. Errors go to the
// trainers. `anew`: the source was made for this epoch. `divides`: all readers have this source, and each of them deals
// its part of the elements.
int hvdata_deal(uint32_t channel, uint64_t epoch, int anew, int divides, const hvdata_input* input) {
  return WithRunning([&](Engine& engine) {
    const std::shared_ptr<Source> source = engine.channels().FindSource(channel);
    if (!source)
      return Report(Outcome(kFailedPrecondition, "channel " + std::to_string(channel) + " is not read here"));
    Division division;
    division.divides = divides != 0;
    const auto make = [&] { return std::make_unique<CallbackPipeline>(input, engine.post().arena()); };
    const Outcome thrown =
        Guarded([&] { return DealEpoch(source.get(), &engine.post(), make, epoch, anew != 0, division), Outcome(); });
    if (!thrown.ok()) {  // the epoch is half dealt, and only an abort ends the wait of its trainers
      Log(engine.world().Here(), thrown.message);
      Abort(1);
    }
    return int{kOk};
  });
}

// A function of an hvdata_input calls it before it returns `code`.
void hvdata_input_failed(int code, const char* message) {
  (void)Run([&] { input_failure = {code, message}; });
}

}  // extern "C"
