// SPDX-License-Identifier: Apache-2.0
// Messages of trainers and of reader 0 to a reader, in any order. The reader's channel must survive all of them.
#include <chrono>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "channel/source.h"
#include "fuzz/fuzz.h"
#include "fuzz/messages.h"
#include "tests/channel_lanes_recorder.h"

namespace hvdata {
namespace {

// The dealer of a reader with two trainers. Whenever it waits, it hears the next message.
class Dealer {
 public:
  explicit Dealer(Decisions from) : from_(from) {
    const size_t job = from_.Choice(4);  // one reader; two that take turns; two with trainers of their own; dynamic
    const int readers = job == 1 || job == 2 ? 2 : 1;
    std::vector<Member> members;
    for (int r = 0; r < readers; ++r) members.push_back({"host", 0, 0, r, -1, job == 2 ? r : 0});
    for (int t = 0; t < kTrainers * readers; ++t)
      members.push_back({"host", 0, 0, -1, t, job == 2 ? t / kTrainers : 0});
    world_ = World::Of(static_cast<int>(from_.Choice(static_cast<size_t>(readers))), std::move(members));
    ChannelConfig config;
    config.number = 1;
    config.name = "train";
    config.batch = plan::Batch::kPerRank;
    config.schedule = job == 3 ? plan::Schedule::kDynamic : plan::Schedule::kStatic;
    config.verify = from_.Choice(2) == 0;
    config.on_error_continue = from_.Choice(2) == 0;
    config.prefetch = static_cast<int>(from_.Choice(4));
    config.prefetch_bytes = 1 << 10;
    config.elements = from_.Choice(2) == 0 ? -1 : static_cast<int64_t>(from_.Choice(8));
    Doorbell door;
    door.fetch = [this] { return Hear(); };
    const auto send = [this](int member, const wire::Header& header, const Share* share) {
      FUZZ_EXPECT(member >= 0 && static_cast<size_t>(member) < world_.members.size());
      if (share == nullptr) return;
      const auto* data = std::get_if<wire::Data>(&header.message);
      FUZZ_EXPECT(data != nullptr && world_.GroupTrainerIndex(member) >= 0);
    };
    source_ = std::make_unique<Source>(config, &world_, 1e6, send, door);
  }

  void Run() {
    for (int64_t next = 0; next >= 0;) {
      uint64_t number = 0;
      next = source_->WaitEpoch(std::chrono::hours(1), &number);
      Hear();  // because WaitEpoch() fetches no message if the epoch is open already
      if (next > 0) Deal(static_cast<uint64_t>(next));
    }
  }

 private:
  static constexpr int kTrainers = 2;

  void Deal(uint64_t number) {
    if (from_.Choice(16) == 15) return source_->FailEpoch(number, {kInternal, "no input"});
    plan::Resumption at;
    for (const auto& [trainer, restore] : source_->Begin(number, [] {})) {
      at.positions.resize(static_cast<size_t>(world_.group_trainer_count()), restore.position);
      at.positions[static_cast<size_t>(trainer)] = restore.position;
      at.turn = restore.turn;
    }
    source_->Start(at);
    const int shares = source_->config().schedule == plan::Schedule::kDynamic ? 0 : world_.group_trainer_count();
    const size_t steps = from_.Choice(8);
    for (size_t dealt = 0;; ++dealt) {
      const Source::Task task = source_->Await();
      if (task == Source::Task::kStop) break;
      if (task == Source::Task::kSave) {
        Answer();
      } else if (dealt < steps) {
        source_->Deal(Hashed(MakeStep(dealt, shares)));
      } else {
        Finish(steps, shares);
        break;
      }
    }
    while (source_->Linger() == Source::Task::kSave) Answer();
    source_->End();
  }

  void Finish(size_t steps, int shares) {
    if (from_.Choice(2) == 0) source_->Epoch()->Dropped(1, 1);
    if (source_->shares_tail() && from_.Choice(2) == 0) {
      std::vector<Leftover> leftovers(1);
      leftovers[0].share = Hashed(MakeStep(steps, 0));
      if (from_.Choice(2) == 0) leftovers[0].filler.shares = {MakeToken(0, -1)};
      source_->Epoch()->SetLeftovers(std::move(leftovers), "");
    }
    if (source_->sends_fillers() && from_.Choice(2) == 0) source_->Epoch()->Fill(Hashed(MakeStep(99, shares)));
    if (from_.Choice(4) == 0)
      source_->Epoch()->Finish({kInternal, "broken"}, true);
    else
      source_->Epoch()->Finish({});
  }

  void Answer() {
    for (const SaveRequest& request : source_->TakeSaveRequests()) source_->AnswerSave(request, {}, "state");
    for (const auto& [number, element] : source_->Epoch()->UntakenElements()) FUZZ_EXPECT(element != nullptr);
    for (int t = 0; t < world_.group_trainer_count(); ++t) source_->Epoch()->TakenSince(t);
  }

  bool Hear() {
    if (from_.over()) {
      source_->Shut();
      return false;
    }
    wire::Message message = ReadMessage(&from_);
    const int member = static_cast<int>(from_.Choice(world_.members.size()));
    const uint64_t epoch = from_.Choice(8) > 0 ? 1 + from_.Choice(3) : from_.Number<uint64_t>();
    source_->Handle(member, MakeHeader(1, epoch, std::move(message)));
    return true;
  }

  Decisions from_;
  World world_;
  std::unique_ptr<Source> source_;
};

}  // namespace
}  // namespace hvdata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hvdata::Dealer(hvdata::Decisions(data, size)).Run();
  return 0;
}
