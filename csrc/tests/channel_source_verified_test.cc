// SPDX-License-Identifier: Apache-2.0
// A verified channel's reader: how it uses the trainers' findings, and when it reports to reader 0.
#include "channel_source_fixture.h"

namespace hvdata {
namespace {

class VerifiedTest : public SourceTest {
 protected:
  void SetUp() override { Make({}, MakeWorld(0, 2, 1, true)); }
  void Make(ChannelConfig config, World world) {
    config.verify = true;
    SourceTest::Make(std::move(config), std::move(world));
  }
  void Deal() {
    ASSERT_EQ(source_->Await(), Task::kPull);
    source_->Deal(Hashed(MakeStep(source_->Steps(), 2)));
  }
  // The trainer has taken this share, which arrived as it was dealt.
  void Take(int trainer, uint64_t taken, const Token& token, uint64_t position, bool filler = false) {
    const proof::ShareHash hash = HashOf(token, filler);
    source_->Hear(
        trainer, 1,
        wire::Taken{
            LaneStep(taken), LaneStep(9), true, {EpochStep(taken - 1), Position(position), hash.data.rows, hash.hash}});
  }
  void Take(int trainer, uint64_t step) { Take(trainer, step + 1, Token{step, trainer}, step + 1); }
  // The reports to reader 0 since the last call. An error is a report with a finding.
  std::vector<proof::Report> Reports() {
    std::vector<proof::Report> reports;
    for (const std::string& text : Sent()) {
      if (text.find("REPORT") == std::string::npos) continue;
      proof::Report report;
      if (const size_t error = text.find("0,0,15 "); error != std::string::npos)
        report.finding = text.substr(error + 7);
      else
        EXPECT_TRUE(proof::Report::Decode(text.substr(text.find("0,0,0 ") + 6), &report));
      reports.push_back(std::move(report));
    }
    return reports;
  }
};

// Shares that were not sent, and places that no share has.
TEST_F(VerifiedTest, NoNumberOfAPeersLeadsOutside) {
  const struct {
    uint64_t taken, position;
    const char* text;
  } cases[] = {
      {1, 0, "1 row came twice"}, {1, 2, "is lost: the one up to element 2 came"},
      {1, ~0ull, "is lost"},      {7, 1, "came twice"},
      {~0ull, 1, "came twice"},   {0, 1, "came twice"},
  };
  for (const auto& one : cases) {
    SetUp();
    OpenAndBegin(1, 9);
    Deal();
    Deal();
    Reports();
    Take(1, one.taken, Token{0, 1}, one.position);
    auto reports = Reports();
    ASSERT_EQ(reports.size(), 1u) << one.taken << ", " << one.position;
    EXPECT_HAS(reports[0].finding, "rank 1 on node1, in its step ");
    EXPECT_HAS(reports[0].finding, one.text);
    Take(1, 1);
    EXPECT_EQ(Reports().size(), 0u) << "one finding of a trainer is enough";
    for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 2);
    reports = Reports();
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_FALSE(reports[0].complete);
    EXPECT_FALSE(reports[0].finding.empty());
  }
}

TEST_F(VerifiedTest, AShareOfAnotherRankIsCalledSwapped) {
  OpenAndBegin(1, 9);
  Deal();
  Deal();
  Reports();
  Take(1, 1, Token{1, 0}, 1);
  const auto reports = Reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_HAS(reports[0].finding, "in its step 0: it got another share in place of its own (swapped)");
}

// The trainer counts its shares when the END comes.
TEST_F(VerifiedTest, SharesThatNeverCameAreCounted) {
  for (const int64_t missing : {int64_t{2}, int64_t{-1}, INT64_MIN}) {
    SetUp();
    OpenAndBegin(1, 9);
    for (int step = 0; step < 3; ++step) Deal();
    Take(1, 0);
    source_->Epoch()->Finish({});
    Reports();
    source_->Hear(1, 1, wire::Close{LaneStep(1), 0, missing});
    const auto reports = Reports();
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_HAS(reports[0].finding, missing > 0    ? "rank 1 on node1, after its step 1: 2 shares, of 2 rows, are lost"
                                   : missing > -2 ? "1 shares more came than were sent (twice)"
                                                  : "9223372036854775808 shares more came");
    source_->OnClose(0, 1, 0);
    source_->End();
    EXPECT_EQ(Reports()[0].lost, missing > 0 ? 2u : 0u);
  }
}

// Another host has more steps than this reader. Its ranks get fillers, which they must confirm as well.
TEST_F(VerifiedTest, FillersAreAmongWhatIsToBeConfirmed) {
  ChannelConfig config;
  config.remainder = plan::Remainder::kPad;
  Make(config, MakeWorld(1, 4, 2, true, true));
  OpenAndBegin(1, 9);
  Deal();
  Step filler = MakeStep(9, 2);
  filler.elements.clear();
  source_->Epoch()->Fill(Hashed(std::move(filler)));
  source_->Epoch()->Finish({});
  source_->Handle(world_.readers[0], MakeHeader(0, 1, wire::Go{wire::Go::Notice::kEndsThere, Turn(2), {}}));
  for (int t = 0; t < 2; ++t) Take(t, 0);
  EXPECT_EQ(Reports().size(), 0u);
  for (int t = 0; t < 2; ++t) Take(t, 2, Token{9, t}, 9, true);
  const auto reports = Reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_TRUE(reports[0].complete) << reports[0].finding << reports[0].why;
  EXPECT_EQ(reports[0].rows, (std::vector<uint64_t>{1, 1}));
}

}  // namespace
}  // namespace hvdata
