// SPDX-License-Identifier: Apache-2.0
// A Sink under test, the test as all of its readers, and everything that it sends, as text.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "channel/sink.h"
#include "channel_job.h"
#include "plain_messages.h"

namespace hvdata {

using wire::Header;

// Trainer 1 of 2, and the test as all of its readers.
class SinkTest : public testing::Test {
 protected:
  void SetUp() override { Make(plan::Schedule::kStatic); }
  void Make(plan::Schedule schedule, int readers = 1, double stall = 10, double timeout = 10) {
    ChannelConfig config;
    config.schedule = schedule;
    Make(std::move(config), MakeWorld(readers + 1, 2, readers, true), stall, timeout);
  }
  void Make(ChannelConfig config, World world, double stall = 10, double timeout = 10) {
    world_ = std::move(world);
    config.number = 7;
    config.name = "train";
    sink_ = std::make_unique<Sink>(config, &world_, stall, timeout, [this](int member, Header h, const Share* share) {
      EXPECT_EQ(h.channel, 7u);
      EXPECT_EQ(share, nullptr);
      ++messages_;
      if (on_send_) on_send_(h);
      const Plain plain = PlainOf(h.message);
      std::lock_guard<std::mutex> lock(mu_);
      sent_.push_back("r" + std::to_string(world_.SourceIndex(member)) + " " + h.name() + " e" +
                      std::to_string(h.epoch) + " " + std::to_string(plain.step) + "," + std::to_string(plain.a));
      claims_ += Is<wire::Claim>(h) ? 1 : 0;
      if (on_sent_) AfterUnlock([this, h] { on_sent_(h); });
    });
  }
  Lines Sent() {
    std::lock_guard<std::mutex> lock(mu_);
    return std::exchange(sent_, {});
  }
  // A reader's message without a share.
  void Say(int reader, uint64_t epoch, wire::Message message) {
    sink_->Handle(reader, MakeHeader(7, epoch, std::move(message)), nullptr);
  }
  void Data(uint64_t epoch, uint64_t step, int reader = 0) { Say(reader, epoch, DataAt(step, step + 1)); }
  Outcome Next(SinkIterator* iterator) { return sink_->Next(iterator, &arrival_, &end_); }
  // Runs `wait` on a thread and, once that has sent a message and had time to begin its wait, `then` beside it.
  Outcome Beside(const std::function<Outcome()>& wait, const std::function<void()>& then) {
    const int before = messages_;
    std::future<Outcome> waiting = std::async(std::launch::async, wait);
    while (messages_ == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    then();
    return waiting.get();
  }

  Outcome NextBeside(SinkIterator* iterator, const std::function<void()>& then) {
    return Beside([&] { return Next(iterator); }, then);
  }

  // The first TAKEN waits for `go_on_`, under the sink's lock.
  void HoldTaken() {
    on_send_ = [this](const Header& h) {
      if (!Is<wire::Taken>(h)) return;
      in_taken_.set_value();
      go_on_.get_future().wait();
    };
  }
  // Restores an iterator; the reader agrees.
  void Restore(SinkIterator* iterator, const SinkState& state) {
    const Outcome outcome =
        Beside([&] { return sink_->Restore(iterator, state); }, [&] { Say(0, 1, wire::State{++restores_, {}}); });
    EXPECT_TRUE(outcome.ok()) << outcome.message;
  }

  World world_;
  SinkIterator iterator_;
  int64_t restores_ = 0;
  std::unique_ptr<Sink> sink_;
  std::function<void(const Header&)> on_send_;  // within Send, under the sink's lock
  std::function<void(const Header&)> on_sent_;  // without the lock: a test can answer as a reader here
  Arrival arrival_;
  bool end_ = false;
  std::atomic<int> messages_{0}, claims_{0};
  std::promise<void> in_taken_, go_on_;

 private:
  std::mutex mu_;
  Lines sent_;
};

}  // namespace hvdata
