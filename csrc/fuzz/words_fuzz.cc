// SPDX-License-Identifier: Apache-2.0
// Messages to a reader, from trainers and from the reader that keeps all in step: the channel takes any message, in any order.
#include <chrono>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "channel/reader_epoch.h"
#include "channel/source.h"
#include "fuzz/fuzz.h"
#include "fuzz/messages.h"
#include "tests/channel_lanes_recorder.h"

namespace hvdata {
namespace {

// The dealer of a reader with two trainers. When it waits it gets the next message.
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
      FUZZ_EXPECT(data != nullptr && world_.AudienceIndex(member) >= 0);
    };
    source_ = std::make_unique<Source>(config, &world_, 1e6, send, door);
  }

  void Run() {
    for (int64_t next = 0; next >= 0;) {
      uint64_t number = 0;
      next = source_->WaitEpoch(std::chrono::hours(1), &number);
      Hear();  // as on the network's thread: WaitEpoch does not wait for an epoch that a trainer has opened
      if (next > 0) Deal(static_cast<uint64_t>(next));
    }
  }

 private:
  static constexpr int kTrainers = 2;

  void Deal(uint64_t number) {
    if (from_.Choice(16) == 15) return source_->FailEpoch(number, {kInternal, "no input"});
    const std::shared_ptr<ReaderEpoch> epoch = source_->Begin(number, [] {});
    std::vector<Position> positions;
    Turn turn;
    for (const auto& [trainer, restore] : epoch->handed()) {
      positions.resize(static_cast<size_t>(world_.audience_count()), restore.position);
      positions[static_cast<size_t>(trainer)] = restore.position;
      turn = restore.turn;
    }
    epoch->Start(positions, turn);
    const int shares = source_->config().schedule == plan::Schedule::kDynamic ? 0 : world_.audience_count();
    const size_t steps = from_.Choice(8);
    for (size_t dealt = 0;; ++dealt) {
      const ReaderEpoch::Wish wish = epoch->Await();
      if (wish == ReaderEpoch::Wish::kStop) break;
      if (wish == ReaderEpoch::Wish::kSave) {
        Answer(epoch.get());
      } else if (dealt < steps) {
        epoch->Deal(Promised(dealt, shares));
      } else {
        Finish(epoch.get(), steps, shares);
        break;
      }
    }
    while (epoch->Linger() == ReaderEpoch::Wish::kSave) Answer(epoch.get());
    epoch->End();
  }

  void Finish(ReaderEpoch* epoch, size_t steps, int shares) {
    if (from_.Choice(2) == 0) epoch->Dropped(1, 1);
    if (epoch->shares_tail() && from_.Choice(2) == 0) {
      std::vector<ReaderEpoch::Left> left(1);
      left[0].element = std::make_shared<Token>(Token{steps, -1});
      left[0].share = MakeToken(steps, -1);
      if (from_.Choice(2) == 0) left[0].filler = MakeToken(0, -1);
      epoch->Leave(std::move(left), steps, "");
    }
    if (epoch->fills() && from_.Choice(2) == 0) epoch->Fill(Promised(99, shares));
    if (from_.Choice(4) == 0)
      epoch->FinishFailed({kInternal, "broken"});
    else
      epoch->Finish({});
  }

  void Answer(ReaderEpoch* epoch) {
    for (const SaveRequest& request : epoch->TakeSaveRequests()) epoch->AnswerSave(request, {}, "state");
    for (const auto& [number, element] : epoch->UntakenElements()) FUZZ_EXPECT(element != nullptr);
    for (int t = 0; t < world_.audience_count(); ++t) epoch->TakenSince(t);
  }

  // With the promises of a verified channel.
  static Step Promised(uint64_t first, int shares) {
    Step step = MakeStep(first, shares);
    for (size_t i = 0; i < step.elements.size(); ++i) step.promises.elements.push_back(proof::Yield());
    for (const auto& share : step.shares) step.promises.shares.push_back(PromiseOf(TokenOf(share->bundle), false));
    return step;
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
