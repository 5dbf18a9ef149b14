// SPDX-License-Identifier: Apache-2.0
// A channel with cache="job" over the made-up source: the pipeline of its load, the threads of readers and keepers, and
// what trainers check and count.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
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
#include "tests/unsaved_pipeline.h"

namespace hvdata {

// Row n of the epoch is row n of the made-up source, in its first epoch of channel `channel`.
class MadeUpPipeline : public UnsavedPipeline {
 public:
  MadeUpPipeline(const MadeUpRows* rows, uint32_t channel, int64_t per_step, uint64_t steps)
      : rows_(rows), channel_(channel), per_step_(per_step), steps_(steps) {}

  Outcome Next(Columns* element, bool* end) override {
    *end = next_ == steps_;
    if (*end) return {};
    constexpr int kUint8 = 4;
    const Column made = New(kUint8, {per_step_, static_cast<int64_t>(rows_->bytes())});
    for (int64_t i = 0; i < per_step_; ++i) {
      rows_->Make(channel_, 0, 1, next_ * static_cast<uint64_t>(per_step_) + static_cast<uint64_t>(i),
                  made.make<char>() + static_cast<size_t>(i) * rows_->bytes());
    }
    ++next_;
    *element = {made};
    return {};
  }

 private:
  const MadeUpRows* const rows_;
  const uint32_t channel_;
  const int64_t per_step_;
  const uint64_t steps_;
  uint64_t next_ = 0;
};

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
    ChannelConfig config;
    config.prefetch = prefetch;
    config.component_names = {"rows"};
    config.empty_rules = {static_cast<int>(EmptyRule::kRows)};
    config.dtypes = {4};
    config.row_lengths = {-1};
    config.shapes.resize(1);
    config.number = load;
    config.name = "cached (load)";
    config.view = View::kLoad;
    config.is_source = me.reads();
    engine->CreateChannel(config);
    config.number = kept;
    config.name = "cached";
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
    const std::shared_ptr<Source> source = engine_->channels().FindSource(load_);
    const auto make = [this] { return std::make_unique<MadeUpPipeline>(made_, kept_, per_step_, steps_); };
    uint64_t number = 0;
    bool anew = true;
    for (int64_t epoch = 0; (epoch = source->WaitEpoch(std::chrono::seconds(1), &number)) >= 0;) {
      if (epoch == 0) continue;
      DealEpoch(source.get(), &engine_->post(), make, static_cast<uint64_t>(epoch), std::exchange(anew, false), {});
    }
    engine_->channels().EndSource(load_);
  }

  void Keep() {
    const std::shared_ptr<Source> source = engine_->channels().FindSource(kept_);
    uint64_t number = 0;
    for (int64_t epoch = 0; (epoch = source->WaitEpoch(std::chrono::seconds(1), &number)) >= 0;) {
      if (epoch > 0) engine_->KeeperOf(kept_, load_)->Deal(static_cast<uint64_t>(epoch), number);
    }
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
    std::vector<char> wanted(made_->bytes());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Column& head = pieces[i]->back();
      const bool over = world.members[static_cast<size_t>(world.sources[i])].host != world.me().host;
      const auto count = static_cast<size_t>(head.count()) - 2;
      for (size_t k = 0; k < count; ++k) {
        const auto place = static_cast<uint64_t>(head.as<int64_t>()[2 + k]);
        const uint64_t row = iterator.epoch == 1 ? first + place : order.At(first + place);
        made_->Make(kept_, 0, 1, row, wanted.data());
        if (std::memcmp(wanted.data(), share[0].memory.data + place * made_->bytes(), made_->bytes()) != 0)
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
