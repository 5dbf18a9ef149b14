// SPDX-License-Identifier: Apache-2.0
// Whole verified jobs, and damage to their shares on the way. Each kind of damage is found, and there is no false
// finding.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <regex>
#include <set>

#include "base/log.h"
#include "channel/certificate.h"
#include "channel_any_job.h"
#include "rows/take_rows.h"

namespace hvdata {
namespace {

enum class Harm { kAlter, kDrop, kDouble, kSwap, kLoseRow, kDoubleRow };

struct Injection {
  Harm harm;
  int to;        // whose share; dynamic: the share of any trainer
  uint64_t nth;  // of its shares; dynamic: of all
};

// A trainer that the damage affects, and its step.
struct Met {
  int trainer;
  std::set<uint64_t> steps;
};

class Injected : public testing::TestWithParam<unsigned> {};

// One share of an epoch is damaged. Swapped: with the next share of another trainer. False: the share was given back
// unused.
bool RunInjected(unsigned seed, bool* by_step) {
  std::mt19937 random(seed);
  const auto draw = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  Job::Options options;
  options.seed = 2 * seed + 1;  // verified
  options.trainers = draw(2, 4);
  options.dedicated = draw(0, 1) == 0;
  options.prefetch = draw(1, 3);
  options.batch = draw(0, 2) == 0 ? plan::Batch::kGlobal : plan::Batch::kPerRank;
  const bool per_rank = options.batch == plan::Batch::kPerRank;
  const bool dynamic = per_rank && draw(0, 3) == 0;
  if (dynamic) options.schedule = plan::Schedule::kDynamic;
  if (per_rank && !dynamic) options.readers = draw(1, 2);
  options.remainder = static_cast<plan::Remainder>(draw(0, 2));
  options.rows = draw(1, 4);
  // Each reader's whole steps, and after them elements for some trainers only.
  const uint64_t steps = 6, its_steps = steps / static_cast<uint64_t>(options.readers);
  const auto trainers = static_cast<uint64_t>(options.trainers), readers = static_cast<uint64_t>(options.readers);
  const uint64_t elements = per_rank ? its_steps * trainers + random() % trainers : its_steps;
  Injection injection{static_cast<Harm>(draw(0, 5)), draw(0, options.trainers - 1), random() % steps};
  // A lost share shows when the next share or the END comes. Without either, the trainer waits, as for any slow reader.
  if (injection.harm == Harm::kDrop) options.prefetch = std::max(options.prefetch, 2 * options.readers);
  if (dynamic) options.prefetch = std::max(options.prefetch, 2);
  // With dynamic, no process knows which element a trainer misses. The job waits, or reports an element that came twice
  // (docs/certificate.md).
  if (dynamic && injection.harm == Harm::kDrop) injection.harm = Harm::kLoseRow;
  const int first = options.dedicated ? options.readers : 0;  // member of trainer 0
  std::mutex mu;
  uint64_t count = 0;
  std::vector<Met> met;  // of both shares that are swapped
  BundlePtr held;
  options.tamper = [&](int to, std::vector<std::pair<wire::Header, BundlePtr>>* copies) {
    const std::lock_guard<std::mutex> lock(mu);
    const int trainer = to - first;
    auto& [header, bundle] = copies->front();
    const auto& data = std::get<wire::Data>(header.message);
    const Columns* share = nullptr;
    EXPECT_TRUE(TakeColumns(bundle, &share).ok());
    const bool its = data.rows > 0 && (dynamic || trainer == injection.to) && count++ == injection.nth;
    const bool its_other = held && met.size() == 1 && trainer != met[0].trainer;
    if (!its && !its_other) return;
    const uint64_t number = NumberOf(*share), reader = number / 10000 % 100;
    met.push_back({trainer, {}});
    // The loss shows when the next share of its reader comes. A copy has a step of its own.
    const uint64_t step = dynamic ? data.step.n : data.turn.n * readers + reader;
    met.back().steps = {step};
    if (injection.harm == Harm::kDrop || injection.harm == Harm::kDouble) met.back().steps.insert(step + 1);
    if (injection.harm == Harm::kDouble) met.back().steps.insert(step + readers);
    const bool of_tail = data.rows == 0 || number % 10000 >= its_steps * trainers;
    if (readers > 1 && of_tail) met.back().steps = {steps, steps + 1};  // two readers' leftovers make two steps at most
    if (its_other) {  // its own step is over: it gets the share that another trainer should have
      bundle = held;
      return;
    }
    const auto row = static_cast<int64_t>(random() % static_cast<unsigned>(options.rows));
    // Rows [0, end), and then rows [begin, ...).
    const auto splice = [&, &bundle = bundle](int64_t end, int64_t begin) {
      Columns spliced(share->size());
      for (size_t i = 0; i < spliced.size(); ++i) {
        const Column& whole = (*share)[i];
        const Columns parts{TakeRows(whole, {0, end, 0}, nullptr),
                            TakeRows(whole, {begin, options.rows - begin, 0}, nullptr)};
        EXPECT_TRUE(JoinRows(parts, &spliced[i]).ok());
      }
      bundle = std::make_shared<Bundle>(Bundle{std::move(spliced), false, ""});
    };
    // Changes these bits of an item.
    const auto alter = [&, &bundle = bundle](int64_t item, int64_t bits) {
      splice(options.rows, options.rows);
      static_cast<Bundle*>(bundle.get())->columns[0].make<int64_t>()[item] ^= bits;
    };
    switch (injection.harm) {
      case Harm::kAlter:
        alter(2 * row, int64_t{1} << (random() % 20));
        break;
      case Harm::kDrop:
        copies->clear();
        break;
      case Harm::kDouble:
        copies->push_back(copies->front());
        break;
      case Harm::kSwap:
        held = bundle;
        alter(2 * row + 1, options.rows);
        break;
      case Harm::kLoseRow:
        splice(row, row + 1);
        break;
      case Harm::kDoubleRow:
        splice(row + 1, row);
        break;
    }
  };
  Job job(options, Job::Elements(elements));
  std::vector<std::string> texts(trainers);
  job.RunTrainers([&](int t) {
    Iteration epoch(&job, t);
    epoch.Take();
    if (epoch.outcome.ok()) {  // doubled after the end: all ranks were done, and get the error in the next epoch
      Iteration next(&job, t);
      next.Take();
      epoch.outcome = next.outcome;
    }
    texts[static_cast<size_t>(t)] = epoch.outcome.Text();
  });
  const std::string record = job.record();  // before the lock: `tamper` takes it while the job holds its own
  const std::lock_guard<std::mutex> lock(mu);
  EXPECT_FALSE(met.empty()) << "seed " << seed << ": nothing was harmed";
  // Dynamic: shares that a slow rank has not taken go back and reach other ranks. The reader has them unchanged, so the
  // epoch is right, and its record says so.
  const bool all_right = std::all_of(texts.begin(), texts.end(), [](const std::string& text) { return text.empty(); });
  if (dynamic && all_right && record.find("\"verdict\": \"complete\"") != std::string::npos) return false;
  const bool copies_or_none = injection.harm == Harm::kDouble || injection.harm == Harm::kDrop;
  for (const std::string& text : texts) {
    bool named = false, by_count = false;
    for (const auto& [trainer, its] : met) {
      std::string numbers;
      for (const uint64_t step : its) numbers += (numbers.empty() ? "" : "|") + std::to_string(step);
      const std::string rank = "rank " + std::to_string(trainer) + " on node" + std::to_string(trainer) + "\\b";
      if (!std::regex_search(text, std::regex(rank))) continue;
      named = named || std::regex_search(text, std::regex("step (" + numbers + ")\\b"));
      // Two findings name the rank and not the share's step. If the rank counts its shares at the END before its reader
      // does, it names its own last step. A copy of the last share belongs to no step, so only the count of the rank's
      // steps shows it.
      by_count = by_count || (copies_or_none && text.find("shares of this epoch, and ") != std::string::npos);
      by_count = by_count || (injection.harm == Harm::kDrop && text.find(", are lost") != std::string::npos);
      by_count = by_count ||
                 (injection.harm == Harm::kDouble && text.find("came than were sent (twice)") != std::string::npos);
    }
    *by_step = *by_step && named;
    EXPECT_TRUE(named || by_count) << "seed " << seed << ", harm " << static_cast<int>(injection.harm)
                                   << (dynamic ? ", dynamic" : "") << ": " << text;
  }
  return true;
}

TEST_P(Injected, IsFoundOnEveryRank) {
  int named = 0;
  for (unsigned i = 0; i < 100; ++i) {
    int tries = 0;
    bool by_step = true;
    while (!RunInjected(GetParam() * 100 + i, &by_step))
      ASSERT_LT(++tries, 50) << "seed " << GetParam() * 100 + i << ": never handed out";
    named += by_step;
  }
  std::cout << named
            << " of 100 injections named by rank and step on every rank, the others by rank and count on some\n";
  EXPECT_GE(named, 70);
}
INSTANTIATE_TEST_SUITE_P(Seeds, Injected, testing::Range(0u, 10u));

// Every shape of a job without damage: no false alarm, and a complete record.
class LeftAlone : public AnyJob {};

TEST_P(LeftAlone, IsCertified) {
  Job::Options options = Shape();
  options.batch = plan::Batch::kPerRank;
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
  const uint64_t dropped =
      options.remainder == plan::Remainder::kDrop ? all % static_cast<uint64_t>(options.trainers) : 0;
  std::string record = job.record();
  for (int i = 0; record.empty() && i < 600; ++i) {  // if a rank was delayed, the others end without it
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    record = job.record();
  }
  EXPECT_HAS(record, "\"verdict\": \"complete\"");
  EXPECT_HAS(record, "\"rows\": " + std::to_string(all - dropped) + ",") << record << ", of " << all;
  EXPECT_HAS(record, "\"dropped\": " + std::to_string(dropped) + ",") << record << ", of " << all;
}
INSTANTIATE_TEST_SUITE_P(Seeds, LeftAlone, testing::Range(0u, 48u));

proof::Report OfReader(uint64_t rank, const std::string& why) {
  proof::Report report;
  report.channel = "train";
  report.number = 2;
  report.mode = {0, 0, 0};
  report.ranks = {rank}, report.trainers = 1, report.rows = {1}, report.steps = {1};
  report.why = why;
  report.complete = why.empty();
  return report;
}

// The records in the file.
std::string RecordsIn(const std::string& file) {
  EXPECT_TRUE(FileWriter().Flush(std::chrono::seconds(60)));
  return TextIn(file);
}

// A reader 0 alone, whose records are appended to a file.
class CertifierTest : public testing::Test {
 protected:
  explicit CertifierTest(World world = World::Of(0, {{"a", 0, 0, 0, 0}})) : world_(std::move(world)) {}
  ~CertifierTest() override { std::filesystem::remove(file_); }
  void Report(const proof::Report& report, uint64_t epoch = 1, uint32_t channel = 1, int reader = 0) {
    certifier_.OnReport(reader, MakeHeader(channel, epoch, wire::Report{report.Encode()}));
  }

  const std::string file_ = testing::TempDir() + "certificate_" + std::to_string(getpid());
  const World world_;
  std::vector<Outcome> verdicts_;  // to trainers
  Certifier certifier_{&world_,
                       [this](int, const wire::Header& sent, const Share*) {
                         verdicts_.push_back(std::get<wire::Verified>(sent.message).outcome);
                       },
                       file_};
};

class CertifierOfTwo : public CertifierTest {
 protected:
  CertifierOfTwo() : CertifierTest(World::Of(0, {{"a", 0, 0, 0, 0}, {"b", 0, 0, 1, 1}})) {}
};

// An error of Python includes its traceback.
TEST(Certificate, IsOneLine) {
  const Certificate certificate({{0, OfReader(0, "ValueError: bad row\nTraceback (most recent call last):\n  ...")}});
  EXPECT_EQ(certificate.Line(),
            "channel train, epoch 2, not complete (ValueError: bad row): 1 row that the reader yielded, each delivered "
            "once; 0 lost, 0 twice, "
            "0 altered");
  const std::string record = certificate.Record(true);
  EXPECT_HAS(record, "Traceback");
  EXPECT_EQ(record.find('\n'), std::string::npos) << record;
}

// A failing reader ends the epoch of all readers, whichever reader it is.
TEST(Certificate, SaysTheErrorOfTheReaderThatHadOne) {
  for (const int failed : {0, 1, 2}) {
    std::map<int, proof::Report> reports;
    for (int reader = 0; reader < 3; ++reader) {
      reports[reader] = OfReader(static_cast<uint64_t>(reader), reader == failed ? "bad row"
                                                                : reader == 2    ? ""
                                                                                 : proof::kBrokenOff);
    }
    EXPECT_HAS(Certificate(reports).Line(), "not complete (bad row)");
  }
  EXPECT_HAS(Certificate({{0, OfReader(0, "")}, {1, OfReader(1, proof::kBrokenOff)}}).Line(), "(it was broken off)");
}

// A killed job or a full disk may leave half a line. The next line must not be lost with it.
TEST_F(CertifierTest, BeginsALineOfItsOwn) {
  certifier_.OnChannel(true);
  for (const char* before : {"", "{\"certificate\": 2}\n", "{\"certif"}) {
    std::ofstream(file_) << before;
    for (uint64_t epoch : {1, 2}) Report(OfReader(0, ""), epoch);
    const std::string text = RecordsIn(file_);
    const bool cut = before[0] != '\0' && std::string(before).back() != '\n';
    const std::string begin = std::string(before) + (cut ? "\n" : "") + "{\"certificate\": 2, \"channel\": \"train\"";
    EXPECT_EQ(text.substr(0, begin.size()), begin);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2 + (before[0] != '\0'));
  }
}

// Opening a pipe without a reader blocks for ever, as does any file of a file system that hangs. No thread that
// delivers a report waits for the file. Trainers get the verdicts, and the records exist.
TEST_F(CertifierTest, NobodyWaitsForAFileThatHangs) {
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  certifier_.OnChannel(true);
  for (uint64_t epoch = 1; epoch <= 10; ++epoch) Report(OfReader(0, ""), epoch);
  EXPECT_EQ(verdicts_.size(), 10u);
  EXPECT_HAS(certifier_.Last().at(0), "\"verdict\": \"complete\"");
  EXPECT_FALSE(FileWriter().Flush(std::chrono::milliseconds(10)));
  const int in = open(file_.c_str(), O_RDWR);  // now the file system works again
  EXPECT_TRUE(FileWriter().Flush(std::chrono::seconds(60)));
  std::string text(100000, '\0');
  text.resize(static_cast<size_t>(read(in, text.data(), text.size())));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  close(in);
}

// Making the record of millions of elements takes a second. Delivery must not stop for so long.
TEST_F(CertifierTest, AThreadThatDeliversMakesNoRecord) {
  proof::Report report = OfReader(0, "");
  report.listed.assign(1 << 20, 7);
  const auto seconds = [](auto what) {
    const auto begun = std::chrono::steady_clock::now();
    what();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  };
  const wire::Header header = MakeHeader(1, 1, wire::Report{report.Encode()});
  std::string record;
  const double whole = seconds([&] { record = Certificate({{0, report}}).Record(true) + "\n"; });
  EXPECT_LT(seconds([&] { certifier_.OnReport(0, header); }), whole / 2);
  EXPECT_EQ(RecordsIn(file_), record);
}

// A job that makes a channel for each epoch may make millions of channels.
TEST_F(CertifierOfTwo, ForgetsChannels) {
  for (uint32_t channel = 1; channel <= 50; ++channel) {
    for (int reader = 0; reader < 2; ++reader) {
      proof::Report report = OfReader(static_cast<uint64_t>(reader), "");
      report.channel = channel == 3 ? "train" : "channel" + std::to_string(channel);
      const wire::Header last = MakeHeader(channel, 1, wire::Report{report.Encode()});
      const wire::Header gone = MakeHeader(channel, 1, wire::Report());
      const bool gone_first = channel % 2 == 0;
      certifier_.OnReport(reader, gone_first ? gone : last);
      certifier_.OnReport(reader, gone_first ? last : gone);
    }
    EXPECT_EQ(certifier_.open_channels(), 0u);
  }
  const std::vector<std::string> records = certifier_.Last();
  EXPECT_EQ(records.size(), 17u) << "those of the last 16 without a name, and the one with a name";
  EXPECT_HAS(records.back(), "\"channel\": \"train\"");
  EXPECT_HAS(records.front(), "\"channel\": \"channel35\"");
}

// A resumed epoch may have its finding from the checkpoint. No rank has raised that error in this run.
TEST_F(CertifierOfTwo, AFindingOfAnEarlierRunIsAnErrorOnEveryTrainer) {
  for (int reader = 0; reader < 2; ++reader) {
    proof::Report report = OfReader(static_cast<uint64_t>(reader), "");
    if (reader == 1) report.finding = "rank 1 has lost a share";
    Report(report, 1, 1, reader);
  }
  ASSERT_EQ(verdicts_.size(), 2u);
  for (const Outcome& verdict : verdicts_) EXPECT_EQ(verdict.Text(), "[reader 0 on a] rank 1 has lost a share");
}

TEST(Certificate, ItsTextsAreQuoted) {
  const std::string record = Certificate({{0, OfReader(0, "a \"b\" \\ c\n\x1f\x7f caf\xc3\xa9")}}).Record(false);
  EXPECT_HAS(record, "\"why\": \"a \\\"b\\\" \\\\ c\\u000a\\u001f\x7f caf\xc3\xa9\", ");
}

// An old channel's iterator may be released when a later channel of the same name has come further.
TEST_F(CertifierTest, TheLastRecordIsTheNewestChannels) {
  const auto last = [&](uint32_t channel, uint64_t epoch, uint64_t number) {
    proof::Report report = OfReader(0, "");
    report.number = number;
    Report(report, epoch, channel);
    const std::string record = certifier_.Last().at(0);
    return record.substr(record.find("\"epoch\": "), 11);
  };
  EXPECT_EQ(last(1, 1, 1), "\"epoch\": 1,");
  EXPECT_EQ(last(2, 1, 7), "\"epoch\": 7,");
  EXPECT_EQ(last(1, 2, 2), "\"epoch\": 7,") << "an old channel's";
  EXPECT_EQ(last(2, 2, 8), "\"epoch\": 8,");
}

// A program that reads a report makes lists as long as its highest rank.
TEST(Report, ARankThatNoJobHasIsRefused) {
  proof::Report report;
  for (const bool sound : {true, false}) {
    report.ranks = {1, sound ? 5000 : uint64_t{1} << 60};
    report.rows = report.steps = {1, 2};
    proof::Report read;
    EXPECT_EQ(proof::Report::Decode(report.Encode(), &read), sound);
  }
}

// The ranks of one host saved at their end, those of the other before it. The account of the first host is not used.
TEST_F(CertifierOfTwo, WhatAnEarlierRunHasAccountedForMakesItNotComplete) {
  for (const int over : {0, 1}) {
    for (int reader = 0; reader < 2; ++reader) {
      proof::Report said;
      said.mode = {0, 0, 0};
      said.complete = true;
      said.trainers = 1, said.ranks = {static_cast<uint64_t>(reader)};
      said.rows = said.steps = {0};
      if (reader != over)
        said.channel = "train", said.number = 1, said.rows = {3}, said.steps = {1}, said.delivered.rows = 3;
      Report(said, 1, static_cast<uint32_t>(1 + over), reader);
    }
    const std::string record = certifier_.Last().at(0);
    EXPECT_HAS(record, "\"verdict\": \"not complete\"");
    EXPECT_HAS(record, "an earlier run has accounted for the rows of reader " + std::to_string(over));
  }
}

}  // namespace
}  // namespace hvdata
