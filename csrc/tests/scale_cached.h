// SPDX-License-Identifier: Apache-2.0
// A channel with cache="job" over the made-up source: the threads of readers and keepers, and what trainers check and
// count.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/keeper.h"
#include "channel/sink.h"
#include "channel/source.h"
#include "deal/dealer.h"
#include "engine/engine.h"
#include "plan/permutation.h"
#include "rows/bundle.h"
#include "rows/gather.h"
#include "tests/scale_rows.h"

namespace hvdata {

class CachedChannel {
 public:
  // `rows`: of one trainer's share. `load` and `kept`: the numbers of the two channels.
  CachedChannel(Engine* engine, const MadeUpRows* made, int64_t rows, uint64_t steps, int prefetch, uint32_t load,
                uint32_t kept)
      : engine_(engine),
        made_(made),
        rows_(rows),
        per_step_(rows * engine->world().trainer_count()),
        steps_(steps),
        load_(load),
        kept_(kept) {
    const Member& me = engine->world().me();
    ChannelConfig config = RowsPipeline::Config(load, "cached (load)", prefetch);
    config.view = View::kLoad;
    config.is_source = me.reads();
    engine->CreateChannel(config);
    config = RowsPipeline::Config(kept, "cached", prefetch);
    config.view = View::kKept;
    config.is_source = me.keeper >= 0;
    config.shuffle = true;
    config.seed_low = kSeed;
    config.cache_bytes = 1ull << 30;
    engine->CreateChannel(config);
    if (me.reads()) threads_.emplace_back([this] { Read(); });
    if (me.keeper >= 0)
      threads_.emplace_back([this] { Keep(); });
    else
      engine->UnuseChannel(load);
  }

  void Join() {
    for (std::thread& thread : threads_) thread.join();
  }

  // What a trainer has got.
  struct Got {
    uint64_t steps = 0, rows = 0, pieces = 0;
    uint64_t rows_over = 0, pieces_over = 0;  // from other hosts
  };

  // One epoch of this trainer. Every row is to come from the keeper of the host that gets it in epoch 1.
  Outcome Epoch(Got* got) const {
    const std::shared_ptr<Sink> sink = engine_->channels().Use(kept_);
    SinkIterator iterator;
    Outcome outcome;
    for (bool end = false; outcome.ok();) {
      Arrival arrival;
      outcome = sink->Next(&iterator, &arrival, &end);
      if (end) break;
      if (outcome.ok()) outcome = Look(*sink, iterator, arrival, got);
      sink->HandedOut(iterator);
    }
    sink->Drop(&iterator);
    engine_->UnuseChannel(kept_);
    return outcome;
  }

 private:
  static constexpr uint64_t kSeed = 7;

  void Read() {
    const std::shared_ptr<Source> source = engine_->channels().Find(load_).source;
    ForEachEpoch(source.get(), [&](uint64_t epoch, uint64_t) {
      const auto make = [this] {
        return std::make_unique<RowsPipeline>(made_, RowsPipeline::Epoch{kept_, 0, 1, steps_, per_step_});
      };
      DealEpoch(source.get(), &engine_->post(), make, epoch, false, {});
    });
    engine_->channels().EndSource(load_);
  }

  void Keep() {
    const std::shared_ptr<Source> source = engine_->channels().Find(kept_).source;
    ForEachEpoch(source.get(),
                 [this](uint64_t epoch, uint64_t number) { engine_->KeeperOf(kept_, load_)->Deal(epoch, number); });
    engine_->EndKeeper(kept_);
    engine_->channels().EndSource(kept_);
    engine_->UnuseChannel(load_);
  }

  Outcome Look(const Sink& sink, const SinkIterator& iterator, const Arrival& arrival, Got* got) const {
    const World& world = sink.world();
    const auto wrong = [&](const std::string& what) {
      return Outcome(kDataLoss, what, sink.Where(iterator.epoch, EpochStep(iterator.taken.n - 1)));
    };
    std::vector<const Columns*> pieces(1 + arrival.more.size());
    HVDATA_RETURN_IF_ERROR(TakeColumns(arrival.bundle, &pieces[0]));
    for (size_t i = 1; i < pieces.size(); ++i)
      HVDATA_RETURN_IF_ERROR(TakeColumns(arrival.more[i - 1].bundle, &pieces[i]));
    Columns share;
    uint64_t rows = 0;
    HVDATA_RETURN_IF_ERROR(JoinPieces(LeavesOf(sink.config()), pieces, &share, &rows));
    if (rows != static_cast<uint64_t>(rows_) || share[0].memory.size != rows * made_->bytes())
      return wrong("the share has not the size that it has to have");
    const plan::Permutation order(steps_ * static_cast<uint64_t>(per_step_), kSeed, iterator.epoch);
    const std::vector<int> keeper_of_rank = world.KeeperOfRank();
    const auto first =
        (iterator.taken.n - 1) * static_cast<uint64_t>(per_step_) + static_cast<uint64_t>(world.me().trainer * rows_);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Column& head = pieces[i]->back();
      const bool over = world.members[static_cast<size_t>(world.sources[i])].host != world.me().host;
      const auto count = static_cast<size_t>(head.count()) - 2;
      for (size_t k = 0; k < count; ++k) {
        const auto place = static_cast<uint64_t>(head.as<int64_t>()[2 + k]);
        const uint64_t row = iterator.epoch == 1 ? first + place : order.At(first + place);
        if (!made_->Is(share[0].memory.data + place * made_->bytes(), kept_, 0, 1, row))
          return wrong("row " + std::to_string(place) + " of this share is not row " + std::to_string(row));
        const auto home = static_cast<size_t>(row % static_cast<uint64_t>(per_step_)) / static_cast<size_t>(rows_);
        if (keeper_of_rank[home] != static_cast<int>(i))
          return wrong("row " + std::to_string(row) + " has come from " + world.SourceName(static_cast<int>(i)));
      }
      ++got->pieces;
      got->rows += count;
      if (over) ++got->pieces_over, got->rows_over += count;
    }
    ++got->steps;
    return {};
  }

  Engine* const engine_;
  const MadeUpRows* const made_;
  const int64_t rows_, per_step_;
  const uint64_t steps_;
  const uint32_t load_, kept_;
  std::vector<std::thread> threads_;
};

}  // namespace hvdata
