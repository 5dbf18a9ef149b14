// SPDX-License-Identifier: Apache-2.0
// The states of a trainer's iterator and of a verified epoch in a checkpoint, and readers' messages to a trainer that
// resumes from it.
#include <map>
#include <memory>
#include <variant>

#include "channel/certificate.h"
#include "channel/sink.h"
#include "fuzz/fuzz.h"
#include "fuzz/messages.h"
#include "proof/report.h"

namespace hvdata {
namespace {

void TryBookmark(std::string_view bytes) {
  proof::Bookmark mark;
  if (!proof::Bookmark::Decode(bytes, &mark)) return;
  FUZZ_EXPECT(mark.Encode() == bytes);
  for (const uint64_t element :
       {uint64_t{0}, mark.first, mark.first + 1, mark.first + mark.ahead.size(), ~uint64_t{0}}) {
    FUZZ_EXPECT(mark.From(element).size() <= mark.ahead.size());
    mark.UpTo(element);
  }
}

void TryReport(std::string_view bytes) {
  proof::Report report;
  if (!proof::Report::Decode(bytes, &report)) return;
  FUZZ_EXPECT(report.Encode() == bytes);
  if (report.mode.size() != 3) return;  // as the certifier does
  const Certificate certificate({{0, report}, {1, report}});
  FUZZ_EXPECT(!certificate.Line().empty());
  const std::string record = certificate.Record(true);
  FUZZ_EXPECT(record.find('\n') == std::string::npos);
}

// One trainer of two. When it waits it gets the next message.
class Trainer {
 public:
  explicit Trainer(Decisions from) : from_(from) {
    readers_ = 1 + static_cast<int>(from_.Choice(2));
    std::vector<Member> members;
    for (int r = 0; r < readers_; ++r) members.push_back({"host", 0, 0, r, -1, 0});
    for (int t = 0; t < 2; ++t) members.push_back({"host", 0, 0, -1, t, 0});
    world_ = World::Of(readers_, std::move(members));
    ChannelConfig config;
    config.number = 1;
    config.name = "train";
    config.schedule = from_.Choice(2) == 0 ? plan::Schedule::kStatic : plan::Schedule::kDynamic;
    Doorbell door;
    door.fetch = [this] { return Hear(); };
    const auto send = [this](int member, const wire::Header&, const Share*) {
      FUZZ_EXPECT(member >= 0 && member < readers_);
    };
    sink_ = std::make_unique<Sink>(config, &world_, 1e6, 1e6, send, door);
  }

  void Run() {
    SinkIterator iterators[2];
    while (!from_.over()) {
      SinkIterator* const iterator = &iterators[from_.Choice(2)];
      SinkState state;
      switch (from_.Choice(4)) {
        case 0:
          ReadState(&state);
          sink_->Restore(iterator, state);
          break;
        case 1:
          sink_->Save(iterator, &state);
          break;
        case 2:
          sink_->Drop(iterator);
          break;
        default:
          Arrival arrival;
          bool end = false;
          sink_->Next(iterator, &arrival, &end);
      }
    }
  }

 private:
  void ReadState(SinkState* state) {
    state->kind = static_cast<SinkState::Kind>(from_.Choice(2) == 0 ? from_.Choice(3) : from_.Number<uint64_t>());
    state->epoch = from_.Number<uint64_t>();
    state->number = from_.Number<uint64_t>();
    state->trainers = from_.Choice(2) == 0 ? 2 : from_.Number<uint64_t>();
    state->tail_taken = TailStep(from_.Choice(2) == 0 ? 0 : from_.Number<uint64_t>());
    state->lanes.resize(from_.Choice(4));
    for (SinkState::Lane& lane : state->lanes) {
      lane.position = Position(from_.Number<uint64_t>());
      lane.turn = Turn(from_.Number<uint64_t>());
      lane.reader_state = from_.Text();
    }
  }

  bool Hear() {
    if (from_.over()) {
      sink_->Fail({kUnavailable, "there are no more messages"});
      return false;
    }
    wire::Message message = ReadMessage(&from_);
    const auto sender = static_cast<int>(from_.Choice(static_cast<size_t>(readers_)));
    const uint64_t epoch = from_.Choice(8) > 0 ? 1 + from_.Choice(2) : from_.Number<uint64_t>();
    const bool share = std::holds_alternative<wire::Data>(message) && from_.Choice(4) > 0;
    sink_->Handle(sender, MakeHeader(1, epoch, std::move(message)), share ? std::make_shared<int>(0) : nullptr);
    return true;
  }

  Decisions from_;
  int readers_;
  World world_;
  std::unique_ptr<Sink> sink_;
};

}  // namespace
}  // namespace hvdata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hvdata::Decisions from(data, size);
  switch (from.Choice(3)) {
    case 0:
      hvdata::TryBookmark(from.Rest());
      break;
    case 1:
      hvdata::TryReport(from.Rest());
      break;
    default:
      hvdata::Trainer(from).Run();
  }
  return 0;
}
