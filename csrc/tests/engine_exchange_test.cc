// SPDX-License-Identifier: Apache-2.0
#include "engine/exchange.h"

#include <gtest/gtest.h>

#include <thread>

#include "engine_job.h"

namespace hvdata {
namespace {

using wire::Header;
using wire::Kind;

// Trainer 0 of 2; member 0 is a dedicated reader, so trainer t is member t + 1.
class ExchangeTest : public testing::Test {
 protected:
  explicit ExchangeTest(double stall = 10, double timeout = 10)
      : exchange_(&world_, stall, timeout, [this](int member, Header h, const Share&) {
          sent_.push_back(std::to_string(member) + " " + h.text + " " + std::to_string(h.components.size()));
        }) {}

  void Expect(const std::string& name, uint64_t number, int trainer, Kind kind = Kind::kScatter) {
    exchange_.Expect(kind, name, number, trainer, [this](Outcome outcome, Header h, BundlePtr bundle) {
      got_.push_back(outcome.ok()
                         ? h.text + " " + std::to_string(h.step) + " #" + std::to_string(TokenOf(bundle).element)
                         : std::to_string(outcome.code) + " " + outcome.message);
    });
  }
  void Parcel(int member, const std::string& name, uint64_t number, uint64_t value, Kind kind = Kind::kScatter) {
    Header h;
    h.kind = kind;
    h.text = name;
    h.step = number;
    exchange_.OnParcel(member, std::move(h), std::make_shared<Token>(Token{value, -1}));
  }
  Texts Got() { return std::exchange(got_, {}); }

  const World world_ = MakeWorld(1, 2, 1, true);
  Exchange exchange_;
  Texts sent_, got_;
};

TEST_F(ExchangeTest, NumbersCountPerName) {
  EXPECT_FALSE(exchange_.used());
  EXPECT_EQ(exchange_.NextNumber("a"), 0u);
  EXPECT_EQ(exchange_.NextNumber("a"), 1u);
  EXPECT_EQ(exchange_.NextNumber("b"), 0u);
  EXPECT_TRUE(exchange_.used());
}

TEST_F(ExchangeTest, SendsToTheTrainersMemberWithTheSharesComponents) {
  Header h;
  h.text = "a";
  Share share;
  share.components.resize(3);
  exchange_.SendTo(1, h, share);
  EXPECT_EQ(sent_, (Texts{"2 a 3"}));
}

TEST_F(ExchangeTest, WhicheverComesFirst) {
  Parcel(2, "a", 0, 10);
  EXPECT_EQ(Got(), Texts());
  Expect("a", 0, 1);
  EXPECT_EQ(Got(), (Texts{"a 0 #10"}));
  Expect("a", 1, 1);
  EXPECT_EQ(Got(), Texts());
  Parcel(2, "a", 1, 11);
  EXPECT_EQ(Got(), (Texts{"a 1 #11"}));
}

TEST_F(ExchangeTest, MatchedByKindNameNumberAndSender) {
  Expect("a", 0, 1);
  Parcel(2, "a", 0, 1, Kind::kGather);
  Parcel(2, "b", 0, 2);
  Parcel(2, "a", 1, 3);
  Parcel(1, "a", 0, 4);
  EXPECT_EQ(Got(), Texts());
  Parcel(2, "a", 0, 5);
  EXPECT_EQ(Got(), (Texts{"a 0 #5"}));
  Expect("a", 0, 1, Kind::kGather);
  Expect("a", 0, 0);
  Expect("a", 1, 1);
  Expect("b", 0, 1);
  EXPECT_EQ(Got(), (Texts{"a 0 #1", "a 0 #4", "a 1 #3", "b 0 #2"}));
}

TEST_F(ExchangeTest, OneWhoHasShutDownIsNamedButWhatItSentCounts) {
  Expect("a", 0, 1);
  Expect("a", 0, 0);
  Parcel(2, "b", 0, 7);
  exchange_.OnGone(0);  // a dedicated reader takes part in no scatter
  EXPECT_EQ(Got(), Texts());
  exchange_.OnGone(2);
  const std::string text = "] rank 1 on node1 has shut down and takes no part in this scatter";
  EXPECT_EQ(Got(), (Texts{"14 [rank 0 on node0, scatter 'a', call 0" + text}));
  Expect("b", 0, 1);
  Expect("b", 1, 1);
  EXPECT_EQ(Got(), (Texts{"b 0 #7", "14 [rank 0 on node0, scatter 'b', call 1" + text}));
}

TEST_F(ExchangeTest, AFailureEndsEveryWaitNowAndLater) {
  Expect("a", 0, 1);
  exchange_.Fail({kUnavailable, "shut down"});
  exchange_.Fail({kInternal, "later"});
  Expect("a", 1, 1);
  EXPECT_EQ(Got(), (Texts{"14 [rank 0 on node0, scatter 'a', call 0] shut down",
                          "14 [rank 0 on node0, scatter 'a', call 1] shut down"}));
}

class ImpatientExchangeTest : public ExchangeTest {
 protected:
  ImpatientExchangeTest() : ExchangeTest(0.05, 0.6) {}
};

TEST_F(ImpatientExchangeTest, AMissingPartIsReportedAndThenGivenUp) {
  Expect("a", 3, 1);
  exchange_.Tick();
  EXPECT_EQ(Got(), Texts());
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) exchange_.Tick();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "horovod_data: [rank 0 on node0, scatter 'a', call 3] has waited 0 s for rank 1 on node1, which has not "
            "sent its part\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  exchange_.Tick();
  const Texts got = Got();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].find("4 [rank 0 on node0, scatter 'a', call 3] rank 1 on node1 has not sent its part within"), 0u);
  exchange_.Tick();
  EXPECT_EQ(Got(), Texts());
}

}  // namespace
}  // namespace hvdata
