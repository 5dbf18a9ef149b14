// SPDX-License-Identifier: Apache-2.0
// The dealer of deal/dealer.cc over a made-up source of global batches.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "channel/source.h"
#include "engine/engine.h"
#include "rows/bundle.h"
#include "rows/take_rows.h"
#include "tests/scale_process.h"
#include "tests/scale_rows.h"

namespace hvdata {

// The byte to change of this trainer's share of this step, in every epoch, after its fingerprint was taken. -1: of no
// share.
struct Alteration {
  int trainer = -1;
  uint64_t step = 0;
};

class MadeUpDealer {
 public:
  // `steps`: of an epoch, by its number. `rows`: of one trainer's share.
  MadeUpDealer(Engine* engine, uint32_t channel, const MadeUpRows* rows, int64_t per_share,
               std::function<uint64_t(uint64_t epoch)> steps, Alteration alteration)
      : engine_(engine),
        channel_(channel),
        rows_(rows),
        per_share_(per_share),
        steps_(std::move(steps)),
        alteration_(alteration) {}

  // Until no trainer uses the channel any more.
  void Run() {
    const std::shared_ptr<Source> source = engine_->channels().FindSource(channel_);
    uint64_t number = 0;
    for (int64_t epoch = 0; (epoch = source->WaitEpoch(std::chrono::seconds(1), &number)) >= 0;) {
      if (epoch > 0) RunEpoch(source.get(), static_cast<uint64_t>(epoch));
    }
    engine_->channels().EndSource(channel_);
  }

 private:
  using Task = Source::Task;

  void RunEpoch(Source* source, uint64_t number) {
    source->Begin(number, [] {});
    source->Start({});
    const uint64_t steps = steps_(number);
    uint64_t step = 0;
    for (Task task; (task = source->Await()) != Task::kStop;) {
      if (task == Task::kSave)
        Refuse(source);
      else if (step < steps)
        source->Deal(Make(*source, number, step++));
      else
        break;
    }
    source->Epoch()->Finish({});
    while (source->Linger() == Task::kSave) Refuse(source);
    source->End();
  }

  static void Refuse(Source* source) {
    for (const SaveRequest& request : source->TakeSaveRequests()) {
      source->AnswerSave(request, {kFailedPrecondition, "a made-up source has no state"}, "");
    }
  }

  Step Make(const Source& source, uint64_t epoch, uint64_t number) const {
    const World& world = source.world();
    const auto shares = static_cast<size_t>(world.group_trainer_count());
    const size_t rows = static_cast<size_t>(per_share_), share_bytes = rows * rows_->bytes();
    const auto reader = static_cast<uint64_t>(world.me().reader);
    constexpr int kUint8 = 4;
    const Column element = New(kUint8, {static_cast<int64_t>(shares * rows), static_cast<int64_t>(rows_->bytes())},
                               engine_->post().arena());
    char* const memory = element.make<char>();
    const double begun = ThreadSeconds();
    for (size_t i = 0; i < shares * rows; ++i) {
      rows_->Make(channel_, reader, epoch, number * shares * rows + i, memory + i * rows_->bytes());
    }
    SourceNanoseconds() += static_cast<uint64_t>(1e9 * (ThreadSeconds() - begun));
    Step step;
    step.first = number;
    step.elements.push_back(std::make_shared<Bundle>(Bundle{{element}, false, ""}));
    const bool verify = source.config().verify;
    proof::Element all;
    for (size_t t = 0; t < shares; ++t) {
      char* const data = memory + t * share_bytes;
      const int member = world.group_trainers[t];
      proof::ShareHash hash;
      if (verify) {
        std::vector<proof::Fingerprint> prints;
        for (size_t i = 0; i < rows; ++i) prints.push_back(rows_->FingerprintOf(data + i * rows_->bytes()));
        hash = MadeUpRows::HashOf(prints);
        all.digest.Append(hash.data);
      }
      if (world.members[static_cast<size_t>(member)].trainer == alteration_.trainer && number == alteration_.step) {
        data[share_bytes / 2] = static_cast<char>(data[share_bytes / 2] ^ 1);
      }
      const auto share = MakeShare({View(element, static_cast<int64_t>(t) * per_share_, per_share_)},
                                   {member == world.self, member != world.self, member}, &engine_->post());
      share->rows = rows;
      share->hash = hash.hash;
      step.shares.push_back(share);
      if (verify) step.hashes.shares.push_back(std::move(hash));
    }
    if (verify) step.hashes.elements.push_back(all);
    return step;
  }

  Engine* const engine_;
  const uint32_t channel_;
  const MadeUpRows* const rows_;
  const int64_t per_share_;
  const std::function<uint64_t(uint64_t)> steps_;
  const Alteration alteration_;
};

}  // namespace hvdata
