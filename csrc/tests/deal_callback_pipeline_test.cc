// SPDX-License-Identifier: Apache-2.0
// A source whose functions are in another language: its columns are copied, its errors and states passed on.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "channel/sink_state_bytes.h"
#include "deal/callback_pipeline.h"
#include "tests/column_samples.h"
#include "wire/strings.h"

namespace hvdata {
namespace {

// What the functions of the source do. They are plain C functions, so there is one source at a time.
struct Script {
  std::vector<hvdata_column> element;
  int elements = 2, made = 0, fails_at = -1, closed = 0;
  bool says_why = true;
  uint64_t number = 0;
  std::string restored, state;
} script;

int Failed(int code, const char* why) {
  if (script.says_why) InputFailed(code, why);
  return code;
}

const hvdata_input kSource{
    [](uint64_t number) { return script.number = number, script.fails_at == 0 ? Failed(kUnavailable, "no file") : 0; },
    [](const char* state, size_t n, uint64_t number) {
      script.restored.assign(state, n), script.number = number;
      return 0;
    },
    [](const hvdata_column** columns, int* count) {
      if (++script.made == script.fails_at) return Failed(kInvalidArgument, "ValueError: element 1");
      *columns = script.element.data();
      *count = script.made > script.elements ? -1 : static_cast<int>(script.element.size());
      return 0;
    },
    [](const char** state, size_t* n) {
      if (script.fails_at == -2) return Failed(kFailedPrecondition, "no state");
      *state = script.state.data(), *n = script.state.size();
      return 0;
    },
    [] { ++script.closed; }};

class CallbackPipelineTest : public testing::Test {
 protected:
  CallbackPipelineTest() { script = {}; }

  hvdata_column Given(int32_t dtype, std::string_view bytes) const {
    return {dtype, static_cast<int32_t>(dims_.size()), dims_.data(), bytes.data(), bytes.size(), nullptr};
  }
  Outcome Next() {
    element_.clear();
    return pipeline_.Next(&element_, &end_);
  }

  std::vector<int64_t> dims_{2};
  CallbackPipeline pipeline_{&kSource, nullptr};
  Columns element_;
  bool end_ = false;
};

std::string Encoded(const std::vector<std::string_view>& texts) {
  std::string bytes(wire::EncodedSize(texts), '\0');
  wire::EncodeStringsTo(texts, bytes.data());
  return bytes;
}

TEST_F(CallbackPipelineTest, ColumnsAreCopies) {
  int64_t numbers[] = {7, -8};
  std::string texts = Encoded({"seven", ""});
  script.element = {Given(kInt64, {reinterpret_cast<const char*>(numbers), sizeof numbers}), Given(kText, texts)};
  EXPECT_FALSE(pipeline_.started());
  ASSERT_TRUE(pipeline_.Start(3).ok());
  EXPECT_TRUE(pipeline_.started());
  EXPECT_EQ(pipeline_.number(), 3u);
  EXPECT_EQ(script.number, 3u);
  ASSERT_TRUE(Next().ok());
  numbers[0] = 0, texts.assign(texts.size(), 'x');  // the source reuses its memory
  EXPECT_FALSE(end_);
  EXPECT_EQ(Listed<int64_t>(element_.at(0)), (std::vector<int64_t>{7, -8}));
  EXPECT_EQ(Listed<std::string_view>(element_.at(1)), (std::vector<std::string_view>{"seven", ""}));
  script.element.pop_back();
  ASSERT_TRUE(Next().ok());
  EXPECT_EQ(element_.size(), 1u);
  ASSERT_TRUE(Next().ok());
  EXPECT_TRUE(end_);
  EXPECT_TRUE(element_.empty());
}

TEST_F(CallbackPipelineTest, ColumnsThatDoNotFitTheirShapeAreRefused) {
  ASSERT_TRUE(pipeline_.Start(0).ok());
  script.elements = 100;
  const std::string texts = Encoded({"a", "b"});
  const std::string_view all(texts);
  std::string longer = texts;
  longer[0] = 100;                                                    // the length of the first text
  script.element = {Given(kInt64, std::string_view("12345678", 8))};  // of 2 items
  EXPECT_EQ(Next().message, "a column of the source has other items than its shape says");
  script.element = {Given(12345, std::string_view("12345678", 8))};  // there is no such type
  EXPECT_EQ(Next().message, "a column of the source has other items than its shape says");
  for (const std::string_view bad : {all.substr(1), all.substr(0, 8), std::string_view(longer), std::string_view()}) {
    script.element = {Given(kText, bad)};
    EXPECT_EQ(Next().message, "a column of the source has other items than its shape says");
  }
  dims_ = {2, -1};
  script.element = {Given(kText, all)};
  EXPECT_EQ(Next().message, "a column of the source has other items than its shape says");
  dims_ = {};
  const std::string scalar = Encoded({"one"});
  script.element = {Given(kText, scalar)};
  EXPECT_TRUE(Next().ok());
  EXPECT_TRUE(element_.at(0).dims.empty());
}

TEST_F(CallbackPipelineTest, ErrorsHaveTheSourcesText) {
  script.fails_at = 0;
  Outcome outcome = pipeline_.Start(0);
  EXPECT_EQ(outcome.code, kUnavailable);
  EXPECT_EQ(outcome.message, "no file");
  EXPECT_FALSE(pipeline_.started());
  script.fails_at = 1;
  outcome = Next();
  EXPECT_EQ(outcome.code, kInvalidArgument);
  EXPECT_EQ(outcome.message, "ValueError: element 1");
  script.made = 0, script.says_why = false;
  outcome = Next();
  EXPECT_EQ(outcome.code, kInvalidArgument);
  EXPECT_EQ(outcome.message, "the source has failed without a text");  // not the text of the error before
}

TEST_F(CallbackPipelineTest, States) {
  std::vector<std::string> saved;
  uint64_t bytes = 1;
  EXPECT_EQ(pipeline_.Save(10, &saved, &bytes).message, "the source has no state_dict() or get_state()");
  script.state = std::string("at\0 3", 5);
  ASSERT_TRUE(pipeline_.Save(5, &saved, &bytes).ok());
  EXPECT_EQ(bytes, 6u);
  EXPECT_EQ(saved, std::vector{script.state});
  ASSERT_TRUE(pipeline_.StartFrom(saved, 4).ok());
  EXPECT_EQ(script.restored, script.state);
  EXPECT_EQ(pipeline_.number(), 4u);
  ASSERT_TRUE(pipeline_.Save(4, &saved, &bytes).ok());  // too many bytes: they are counted, not kept
  EXPECT_EQ(bytes, 11u);
  EXPECT_EQ(saved.size(), 1u);
  EXPECT_EQ(pipeline_.StartFrom({"of", "several parts"}, 0).code, kDataLoss);
  script.fails_at = -2;
  EXPECT_EQ(pipeline_.Save(10, &saved, &bytes).message, "no state");
}

TEST_F(CallbackPipelineTest, CancelEndsItBetweenElementsAndCloseClosesItOnce) {
  const auto cancel = pipeline_.Canceller();
  ASSERT_TRUE(pipeline_.Start(0).ok());
  ASSERT_TRUE(Next().ok());
  cancel();
  EXPECT_TRUE(pipeline_.cancelled());
  EXPECT_EQ(Next().code, kCancelled);
  EXPECT_EQ(script.made, 1);
  {
    CallbackPipeline other(&kSource, nullptr);
    other.Close();
    EXPECT_TRUE(other.cancelled());
  }
  EXPECT_EQ(script.closed, 1);
}

// ---- The state of a trainer's iterator.

TEST(SinkStateBytes, ComeBackAsTheyWere) {
  SinkState state;
  state.kind = SinkState::kRunning;
  state.epoch = 3, state.number = 7, state.trainers = 4, state.tail_taken = TailStep(1);
  state.lanes = {{Position(5), Turn(6), std::string("a\0b", 3)}, {Position(~0ull), Turn(0), ""}};
  const std::string bytes = EncodeSinkState(state);
  SinkState again;
  ASSERT_TRUE(DecodeSinkState(bytes, &again).ok());
  EXPECT_EQ(EncodeSinkState(again), bytes);
  EXPECT_EQ(again.kind, SinkState::kRunning);
  ASSERT_EQ(again.lanes.size(), 2u);
  EXPECT_EQ(again.lanes[0].reader_state, state.lanes[0].reader_state);
  EXPECT_EQ(again.lanes[1].position.n, ~0ull);
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_EQ(DecodeSinkState(bytes.substr(0, n), &again).code, kDataLoss) << n << " bytes";
  }
  EXPECT_EQ(DecodeSinkState(bytes + "x", &again).code, kDataLoss);
  std::string other = bytes;
  other[other.find('2')] = '3';  // another version
  EXPECT_EQ(DecodeSinkState(other, &again).code, kDataLoss);
}

}  // namespace
}  // namespace hvdata
