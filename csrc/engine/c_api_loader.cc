// SPDX-License-Identifier: Apache-2.0
// The C functions for programs without TensorFlow: a trainer's iterators, and a reader's Python source. They follow the
// rules of c_api.cc.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arena/write_fault.h"
#include "base/fork.h"
#include "base/interrupts.h"
#include "channel/sink_state_bytes.h"
#include "deal/callback_pipeline.h"
#include "deal/dealer.h"
#include "engine/c_api.h"
#include "engine/engine.h"
#include "engine/mpi_process.h"
#include "engine/share_iterator.h"

struct hvdata_iterator {
  std::shared_ptr<hvdata::Sink> sink;
  uint32_t channel = 0;
  std::unique_ptr<hvdata::ShareIterator> shares;
  bool writes = false;  // the program may write into its columns
  // What the last hvdata_iterator_next has given.
  hvdata::Columns columns;
  std::vector<hvdata_column> given;

  ~hvdata_iterator() { Clear(); }
  // Releases those columns of the last share that the program has not taken over. A signal's handler may have raised an
  // exception before the program could.
  void Clear();
};

namespace hvdata {
namespace {

// A numpy array refuses to be written. A torch tensor can't refuse.
constexpr char kWritten[] =
    "this program writes into read-only memory, for example into a batch of loader(). The write ends this process. "
    "Pass writable=True, or make a new tensor: x = x + 1 instead of x.add_(1)";

thread_local std::string last_place;    // of the last hvdata_iterator_* call that failed
thread_local std::string loader_state;  // of the last hvdata_iterator_save

using Owner = std::shared_ptr<const void>;

// Does what Run does, but leaves the place out of the error's text. hvdata_last_place() returns the place.
template <typename Body>
int RunPlaced(Body body) {
  return Run([&] {
    const Outcome outcome = body();
    last_place = outcome.place.Text();
    return Outcome(outcome.code, outcome.message);
  });
}

// Does what RunPlaced does. kPending: a SIGINT has ended a wait of `body`, and the program calls again.
template <typename Body>
int RunInterruptible(Body body) {
  const uint64_t interrupts = Interrupts();
  const int code = RunPlaced(body);
  return code == kCancelled && interrupts != Interrupts() ? kPending : code;
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

}  // namespace
}  // namespace hvdata

using namespace hvdata;  // NOLINT: this file is the C interface of that namespace

void hvdata_iterator::Clear() {
  if (InForkedChild()) return;  // the memory belongs to the parent, too
  for (const hvdata_column& column : given) delete static_cast<Owner*>(column.owner);
  given.clear();
}

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
    if (outcome.ok())
      loader_state = EncodeSinkState(std::move(state)), *bytes = loader_state.data(), *n = loader_state.size();
    return outcome;
  });
}

// Makes the iterator resume from a state. *over = 1: the epoch of that state was over. kPending: as above.
int hvdata_iterator_restore(hvdata_iterator* iterator, const char* bytes, size_t n, int* over) {
  return RunInterruptible([&]() -> Outcome {
    SinkState state;
    HVDATA_RETURN_IF_ERROR(DecodeSinkState({bytes, n}, &state));
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

// Frees one owner of a share's column. The column's memory is freed with its last owner. Any thread may call this,
// also after hvdata_stop.
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
    const std::shared_ptr<Source> source = engine.channels().Find(channel).source;
    if (!source)
      return Report(Outcome(kFailedPrecondition, "channel " + std::to_string(channel) + " is not read here"));
    Division division;
    division.divides = divides != 0;
    const auto make = [&] { return std::make_unique<CallbackPipeline>(input, engine.post().arena()); };
    OrAbort(engine.world().Here(), [&] { DealEpoch(source.get(), &engine.post(), make, epoch, anew != 0, division); });
    return int{kOk};
  });
}

// A function of an hvdata_input calls it before it returns `code`.
void hvdata_input_failed(int code, const char* message) {
  (void)Run([&] { InputFailed(code, message); });
}

}  // extern "C"
