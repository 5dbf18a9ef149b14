// SPDX-License-Identifier: Apache-2.0
// Whole verified jobs, and what is done to their shares on the way: whatever it is, it is found, and nothing else is.
#include <atomic>
#include <mutex>
#include <regex>

#include "channel/certificate.h"
#include "channel_readers_job.h"

namespace hvdata {
namespace {

enum class Harm { kAlter, kDrop, kDouble, kSwap };

struct Injection {
  Harm harm;
  int to;        // whose share
  uint64_t nth;  // of its shares
};

class Injected : public testing::TestWithParam<unsigned> {};

// One share of an epoch is harmed. Swapped: with the next one that goes to another trainer.
void RunInjected(unsigned seed) {
  std::mt19937 random(seed);
  Job::Options options;
  options.seed = 2 * seed + 1;  // verified
  options.trainers = 2 + static_cast<int>(random() % 3);
  options.dedicated = random() % 2 == 0;
  options.prefetch = 1 + static_cast<int>(random() % 3);
  const uint64_t steps = 6;
  options.batch = random() % 2 == 0 ? plan::Batch::kGlobal : plan::Batch::kPerRank;
  const uint64_t elements = options.batch == plan::Batch::kPerRank ? steps * static_cast<uint64_t>(options.trainers) : steps;
  const Injection injection{static_cast<Harm>(random() % 4), static_cast<int>(random() % static_cast<unsigned>(options.trainers)),
                            random() % steps};
  // Of one that is lost the next one tells, or the end: without either the trainer waits, as for any slow reader.
  if (injection.harm == Harm::kDrop) options.prefetch = std::max(options.prefetch, 2);
  const int member = injection.to + (options.dedicated ? 1 : 0);
  std::mutex mu;
  uint64_t count = 0;
  bool done = false;
  BundlePtr held;
  options.tamper = [&](int to, std::vector<std::pair<wire::Header, BundlePtr>>* copies) {
    const std::lock_guard<std::mutex> lock(mu);
    const bool its = to == member && count++ == injection.nth;
    auto& [header, bundle] = copies->front();
    if (held && to != member && !done) {  // the other half of a swap comes too late for its step: it gets what was meant for another
      bundle = held;
      done = true;
    }
    if (!its) return;
    const Token token = TokenOf(bundle);
    switch (injection.harm) {
      case Harm::kAlter: bundle = std::make_shared<Token>(Token{token.element ^ (1ull << (random() % 20)), token.trainer}); break;
      case Harm::kDrop: copies->clear(); break;
      case Harm::kDouble: copies->push_back(copies->front()); break;
      case Harm::kSwap:
        held = bundle;
        bundle = std::make_shared<Token>(Token{token.element, (token.trainer + 1) % options.trainers});
        break;
    }
  };
  Job job(options, Job::Elements(elements));
  std::vector<std::string> texts(static_cast<size_t>(options.trainers));
  job.RunTrainers([&](int t) {
    Iteration epoch(&job, t);
    epoch.Take();
    if (epoch.outcome.ok()) {  // doubled behind the end: all were done by then, and learn it when they go on
      Iteration next(&job, t);
      next.Take();
      epoch.outcome = next.outcome;
    }
    texts[static_cast<size_t>(t)] = epoch.outcome.message;
  });
  std::string all;
  for (const std::string& text : texts) {
    EXPECT_FALSE(text.empty()) << "seed " << seed << ": an error on every rank";
    all += text + "\n";
  }
  EXPECT_NE(all.find("node" + std::to_string(injection.to)), std::string::npos) << all;
  // What comes twice at the very end is seen when the count is told.
  const bool behind = injection.harm == Harm::kDouble && all.find("after its step " + std::to_string(steps)) != std::string::npos;
  EXPECT_TRUE(behind || std::regex_search(all, std::regex("step " + std::to_string(injection.nth) + "\\b"))) << injection.nth << "\n" << all;
}

TEST_P(Injected, IsFoundOnEveryRank) {
  for (unsigned i = 0; i < 100; ++i) RunInjected(GetParam() * 100 + i);
}
INSTANTIATE_TEST_SUITE_P(Seeds, Injected, testing::Range(0u, 10u));

// Every shape of a job, left alone: no false alarm, and the record says what there was.
class LeftAlone : public ReadersJob {};

TEST_P(LeftAlone, IsCertified) {
  Job::Options options = Shape();
  options.seed = 2 * options.seed + 1;  // verified
  const Lengths lengths = RandomLengths(options.readers, 40);
  Job job(options, Of({lengths}));
  job.RunTrainers([&](int t) {
    Iteration epoch(&job, t);
    epoch.Take();
    EXPECT_TRUE(epoch.outcome.ok()) << epoch.outcome.message;
  });
  uint64_t all = 0;
  for (const uint64_t length : lengths) all += length;
  const uint64_t dropped = options.remainder == plan::Remainder::kDrop ? all % static_cast<uint64_t>(options.trainers) : 0;
  const std::string record = job.record();
  EXPECT_NE(record.find("\"verdict\": \"complete\""), std::string::npos) << record;
  EXPECT_NE(record.find("\"rows\": " + std::to_string(all - dropped) + ","), std::string::npos) << record << ", of " << all;
  EXPECT_NE(record.find("\"dropped\": " + std::to_string(dropped) + ","), std::string::npos) << record << ", of " << all;
}
INSTANTIATE_TEST_SUITE_P(Seeds, LeftAlone, testing::Range(0u, 48u));

// An error of Python's has its traceback with it.
TEST(Certificate, IsOneLine) {
  proof::Report report;
  report.channel = "train";
  report.number = 2;
  report.mode = {0, 0, 0};
  report.ranks = {0}, report.trainers = 1, report.rows = {1}, report.steps = {1};
  report.why = "ValueError: bad row\nTraceback (most recent call last):\n  ...";
  const Certificate certificate({{0, report}});
  EXPECT_EQ(certificate.Line(),
            "channel train, epoch 2, not complete (ValueError: bad row): 1 row, each delivered once; 0 lost, 0 twice, 0 altered");
  const std::string record = certificate.Record(true);
  EXPECT_NE(record.find("Traceback"), std::string::npos) << record;
  EXPECT_EQ(record.find('\n'), std::string::npos) << record;
}

// A channel of the same name may have followed, and have come further, when an old one's iterator goes.
TEST(Certifier, TheLastRecordIsTheNewestChannels) {
  const World world = World::Of(0, {{"a", 0, 0, 0, 0}});
  Certifier certifier(&world, [](int, wire::Header, const Share*) {}, "");
  const auto report = [&](uint32_t channel, uint64_t epoch, uint64_t number) {
    proof::Report said;
    said.channel = "train";
    said.number = number;
    said.mode = {0, 0, 0};
    said.ranks = {0}, said.trainers = 1, said.rows = {1}, said.steps = {1};
    certifier.OnReport(0, MakeHeader(channel, epoch, wire::Report{said.Encode()}));
    return certifier.Last()["train"];
  };
  EXPECT_NE(report(1, 1, 1).find("\"epoch\": 1,"), std::string::npos);
  EXPECT_NE(report(2, 1, 7).find("\"epoch\": 7,"), std::string::npos);
  EXPECT_NE(report(1, 2, 2).find("\"epoch\": 7,"), std::string::npos) << "an old channel's";
  EXPECT_NE(report(2, 2, 8).find("\"epoch\": 8,"), std::string::npos);
}

// Who reads a report makes lists as long as its highest rank.
TEST(Report, ARankThatNoJobHasIsRefused) {
  proof::Report report;
  for (const bool sound : {true, false}) {
    report.ranks = {1, sound ? 5000 : uint64_t{1} << 60};
    report.rows = report.steps = {1, 2};
    proof::Report read;
    EXPECT_EQ(proof::Report::Decode(report.Encode(), &read), sound);
  }
}

}  // namespace
}  // namespace hvdata
