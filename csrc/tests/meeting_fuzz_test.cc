// SPDX-License-Identifier: Apache-2.0
// Messages of any kind with any numbers, between calls of any kind. Nothing may crash, and each callback is called
// exactly once. Made for the sanitizers.
#include <gtest/gtest.h>

#include <random>

#include "channel_job.h"
#include "meeting/agreements.h"
#include "meeting/exchange.h"
#include "wire_samples.h"

namespace hvdata {
namespace {

constexpr int kSteps = 20000;

// A message with one of few names, calls and ranks, so most fit a call.
wire::Message AnyMessage(std::mt19937_64* random) {
  const auto few = [random] { return static_cast<int>((*random)() % 6) - 1; };
  const wire::Filler filler{wire::Filler::kRandom, random};
  const auto number = [&] { return (*random)() % 8 ? static_cast<uint64_t>((*random)() % 5) : filler.Any(); };
  const std::string name((*random)() % 3, 'a');
  switch ((*random)() % 8) {
    case 0:
      return wire::Scatter{name, number(), few(), {few() == 0 ? 3 : 0, "an error"}};
    case 1:
      return wire::Gather{name, number()};
    case 2:
      return wire::Called{name, number(), few()};
    case 3:
      return wire::Departed{{few(), few()}};
    case 4:
      return wire::WhoDeparted();
    case 5:
      return wire::Hello{static_cast<int64_t>(number()), "call", name};
    default:
      return wire::Filled((*random)() % wire::kKinds, filler);
  }
}

BundlePtr FreedWithoutLocks(int step) {
  return std::shared_ptr<int>(new int(step), [](const int* bundle) {
    EXPECT_FALSE(HoldsLocks());
    delete bundle;
  });
}

TEST(MeetingFuzz, Exchange) {
  for (const int self : {0, 3}) {  // the first one reads, too
    std::mt19937_64 random(static_cast<unsigned>(self));
    const World world = MakeWorld(self, 4, 1, false);
    int begun = 0, answered = 0;
    Exchange exchange(&world, 0, 0, [&](int member, wire::Header, const Share*) {
      EXPECT_TRUE(member >= 0 && member < 4);
      EXPECT_TRUE(HoldsLocks());
    });
    const auto note = [&] {
      ++begun;
      return [&answered, once = std::make_shared<int>(0)](const Outcome&, const Exchanged&) {
        EXPECT_EQ(++*once, 1);
        EXPECT_FALSE(HoldsLocks());
        ++answered;
      };
    };
    for (int step = 0; step < kSteps; ++step) {
      const std::string name(random() % 3, 'a');
      const auto any = static_cast<int>(random() % 4);
      switch (random() % 40) {
        case 0: {
          Exchange::Parts parts;
          for (int t = 0; any == world.me().trainer && t < 4; ++t) parts.push_back(std::make_shared<Share>());
          exchange.Scatter(name, any, std::move(parts), note());
          break;
        }
        case 1:
          exchange.Refuse(name, any, {kInternal, "no"});
          break;
        case 2:
        case 3:
          exchange.Gather(name, any, Share(), [&](uint64_t call, auto) { exchange.EndGather(name, call, {}); }, note());
          break;
        case 4:
          if (random() % 50 == 0) exchange.OnDeparted(static_cast<int>(random() % 4), {any, -7, 1 << 30});
          break;
        case 5:
          exchange.Tick();
          break;
        default:
          exchange.Handle(static_cast<int>(random() % 4), MakeHeader(0, 0, AnyMessage(&random)),
                          FreedWithoutLocks(step));
      }
    }
    EXPECT_GT(answered, 100) << "too few calls came to an end by themselves";
    exchange.Fail({kUnavailable, "the end"});
    EXPECT_EQ(answered, begun);
  }
}

TEST(MeetingFuzz, Agreements) {
  for (const int self : {0, 1}) {
    std::mt19937_64 random(static_cast<unsigned>(self));
    const World world = MakeWorld(self, 2, 1, true);
    int sent = 0;
    Agreements agreements(&world, 0, 0, [&](int member, wire::Header, const Share*) {
      EXPECT_TRUE(member >= 0 && member < 3);
      ++sent;
    });
    for (int step = 0; step < kSteps; ++step) {
      const int member = static_cast<int>(random() % 3);
      const wire::Message message = AnyMessage(&random);
      if (const auto* hello = std::get_if<wire::Hello>(&message)) agreements.On(member, *hello);
      if (const auto* verdict = std::get_if<wire::Verdict>(&message)) agreements.On(member, *verdict);
      switch (random() % 40) {
        case 0:
          agreements.Begin("mine", "call");
          break;
        case 1:
          agreements.Wait(static_cast<int64_t>(random() % 5), std::chrono::milliseconds(0));
          break;
        case 2:
          agreements.Tick();
          break;
        default:
          break;
      }
      if (step == kSteps / 2) agreements.OnDeparted(member);
      if (step == kSteps * 3 / 4) agreements.Refuse("no");
    }
    EXPECT_GT(sent, 100);
  }
}

}  // namespace
}  // namespace hvdata
