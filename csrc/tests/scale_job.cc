// SPDX-License-Identifier: Apache-2.0
// A whole job without TensorFlow and without Python. It has the engine, and an invented source on the reader. Trainers
// check every row that they get. benchmarks/scale.py measures with this program:
//   mpirun -np 9 scale_job [NAME=VALUE ...]      the names are those of Options
// Hosts are simulated: each process gets the name of a host, and shares memory only with processes of that host.
// Status 1: a row was wrong, or something failed. stderr says what and where.
#include <mpi.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "base/log.h"
#include "channel/sink.h"
#include "deal/dealer.h"
#include "engine/engine.h"
#include "rows/bundle.h"
#include "rows/fingerprints.h"
#include "tests/scale_cached.h"
#include "tests/scale_plain_mpi.h"
#include "tests/scale_process.h"
#include "tests/scale_rows.h"

namespace hvdata {
namespace {

// The options of the command line. Their values are texts.
class Options {
 public:
  bool Set(const std::string& name, const std::string& value) {
    const auto found = values_.find(name);
    if (found == values_.end()) return false;
    found->second = value;
    return true;
  }
  const std::string& Text(const std::string& name) const { return values_.at(name); }
  int64_t operator[](const std::string& name) const { return std::atoll(Text(name).c_str()); }

 private:
  std::map<std::string, std::string> values_{
      // "dedicated": process 0 reads and does not train. "rank0": process 0 reads and trains. "per_host": the first
      // process of each host reads and trains.
      {"readers", "dedicated"},
      {"hosts", "1"},
      {"rows", "16"},  // the rows of one rank's batch
      {"row_bytes", "4096"},
      {"prefetch", "2"},
      {"steps", "100"},      // the steps of an epoch
      {"rounds", "3"},       // the measured epochs of each channel
      {"by_mpi", "0"},       // final epochs of the same rows with MPI's own calls, from one dedicated reader
      {"paced_steps", "0"},  // the steps of an epoch in which ranks sleep for `pace_ms` after each step
      {"pace_ms", "100"},
      {"idle_ms", "0"},        // the time in which all processes do nothing
      {"cached_epochs", "0"},  // the epochs of a channel with cache="job". 0 means no such channel
      {"alter_trainer", "-1"},
      {"alter_step", "0"},
      {"launched", "0"},  // the time by CLOCK_MONOTONIC when the launcher was started
      {"out", ""},        // a file for the figures, as JSON
  };
};

constexpr uint32_t kPlain = 1, kVerified = 2, kLoad = 3, kKept = 4;

std::vector<Member> RolesOf(const Options& options, int processes) {
  std::vector<Member> roles;
  const int readers = options.Text("readers") == "dedicated" ? 1 : 0, trainers = processes - readers;
  if (readers > 0) roles.push_back({"host0", 0, 0, 0, -1, 0});
  int last_host = -1;
  for (int t = 0; t < trainers; ++t) {
    const auto host = static_cast<int>(t * options["hosts"] / trainers);
    const bool first = host != std::exchange(last_host, host), grouped = options.Text("readers") == "per_host";
    const int reader = grouped ? (first ? host : -1) : options.Text("readers") == "rank0" && t == 0 ? 0 : -1;
    roles.push_back({"host" + std::to_string(host), 0, 0, reader, t, grouped ? host : 0});
  }
  return roles;
}

class Process {
 public:
  Process(Options options, int rank, int processes)
      : options_(std::move(options)), rank_(rank), processes_(processes) {}

  bool Run(double initialized) {
    figures_.Add("mpi", initialized - std::atof(options_.Text("launched").c_str()));
    ConnectMpi();
    Together();
    figures_.Add("before", Used());
    if (!Start()) return false;
    engine_ = Engine::Current();
    figures_.Add("engine", Now() - start_);
    if (!Join()) return false;
    if (engine_->world().me().reads()) {
      for (const uint32_t channel : {kPlain, kVerified}) dealers_.emplace_back([this, channel] { Serve(channel); });
    }
    Epoch("first", kPlain, 0);
    for (int64_t round = 0; round < options_["rounds"]; ++round) Epoch("plain" + std::to_string(round), kPlain, 0);
    for (int64_t round = 0; round < options_["rounds"]; ++round)
      Epoch("verified" + std::to_string(round), kVerified, 0);
    if (options_["paced_steps"] > 0) Epoch("paced", kPlain, options_["pace_ms"]);
    for (int64_t epoch = 1; epoch <= options_["cached_epochs"]; ++epoch) CachedEpoch(epoch);
    Idle();
    figures_.Add("rows", static_cast<double>(rows_seen_));
    figures_.Add("wrong", static_cast<double>(wrong_));
    Leave();
    for (int64_t round = 0; round < options_["by_mpi"]; ++round) ByMpi("mpi" + std::to_string(round));
    figures_.Write(options_.Text("out"), rank_, processes_);
    return wrong_ == 0;
  }

 private:
  // MPI's memory for each connection is not ours: it is there before we look.
  void ConnectMpi() const {
    char to = 0, from = 0;
    for (int other = rank_ == 0 ? 1 : 0; other < (rank_ == 0 ? processes_ : 1); ++other) {
      MPI_Sendrecv(&to, 1, MPI_CHAR, other, 0, &from, 1, MPI_CHAR, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
  }

  bool Good(const Outcome& outcome) {
    if (outcome.ok()) return true;
    Log(outcome.Text());
    ++wrong_;
    return false;
  }

  bool Start() {
    EngineSettings settings;
    settings.stall_seconds = 30;
    settings.timeout_seconds = 240;
    settings.arena_bytes = 4ull << 30;
    start_ = Now();
    return Good(Engine::Start(MPI_COMM_WORLD, RolesOf(options_, processes_), settings));
  }

  // As distribute_dataset: all agree, then each makes the channels.
  bool Join() {
    const int64_t number = engine_->agreements().Begin("channels plain and verified", "scale_job");
    engine_->post().Fetch();
    std::optional<Outcome> verdict;
    while (!(verdict = engine_->agreements().Wait(number, std::chrono::seconds(1)))) {
    }
    if (!Good(*verdict)) return false;
    for (const uint32_t channel : {kPlain, kVerified}) {
      ChannelConfig config = RowsPipeline::Config(channel, channel == kPlain ? "plain" : "verified",
                                                  static_cast<int>(options_["prefetch"]));
      config.verify = channel == kVerified;
      config.is_source = engine_->world().me().reads();
      engine_->CreateChannel(config);
    }
    if (options_["cached_epochs"] > 0) {
      cached_ = std::make_unique<CachedChannel>(engine_.get(), &rows_, options_["rows"],
                                                static_cast<uint64_t>(options_["steps"]),
                                                static_cast<int>(options_["prefetch"]), kLoad, kKept);
    }
    return true;
  }

  // Deals the channel's epochs, until no trainer uses it any more.
  void Serve(uint32_t channel) {
    const std::shared_ptr<Source> source = engine_->channels().Find(channel).source;
    const World& world = engine_->world();
    ForEachEpoch(source.get(), [&](uint64_t epoch, uint64_t) {
      const bool paced = channel == kPlain && epoch == static_cast<uint64_t>(options_["rounds"]) + 2;
      const RowsPipeline::Epoch its{channel, static_cast<uint64_t>(world.me().reader), epoch,
                                    static_cast<uint64_t>(options_[paced ? "paced_steps" : "steps"]),
                                    options_["rows"] * world.group_trainer_count()};
      const auto make = [&] { return std::make_unique<RowsPipeline>(&rows_, its, engine_->post().arena()); };
      DealEpoch(source.get(), &engine_->post(), make, epoch, false, {});
    });
    engine_->channels().EndSource(channel);
  }

  // One epoch of a channel. All processes call this.
  void Epoch(const std::string& name, uint32_t channel, int64_t pace_ms) {
    Together();
    figures_.Add(name + ".before", Used());
    double first = 0, last = 0, waited = 0;
    uint64_t steps = 0;
    if (engine_->world().me().trains()) {
      const std::shared_ptr<Sink> sink = engine_->channels().Use(channel);
      SinkIterator iterator;
      for (bool end = false;;) {
        Arrival arrival;
        const double asked = Now();
        const Outcome outcome = sink->Next(&iterator, &arrival, &end);
        if (!Good(outcome) || end) break;
        last = Now();
        if (steps++ == 0)
          first = last;
        else
          waited += last - asked;
        if (!Good(Looked(sink.get(), iterator, arrival))) break;
        if (pace_ms > 0) usleep(static_cast<useconds_t>(1000 * pace_ms));
      }
      sink->Drop(&iterator);
      engine_->UnuseChannel(channel);
    }
    figures_.Add(name + ".first", first - start_);
    figures_.Add(name + ".last", last - start_);
    figures_.Add(name + ".waited", waited);
    figures_.Add(name + ".steps", static_cast<double>(steps));
    if (!engine_->world().me().trains()) Together();  // a reader's work is over when the trainers' work is
    figures_.Add(name + ".after", Used());
    if (engine_->world().me().trains()) Together();
  }

  // Checks that every row is the source's row for this rank in this step. Alters one byte of the share that the options
  // name.
  Outcome Looked(Sink* sink, const SinkIterator& iterator, const Arrival& arrival) {
    const World& world = engine_->world();
    const uint64_t step = iterator.taken.n - 1;
    const auto rows = static_cast<size_t>(options_["rows"]);
    const Columns* found = nullptr;
    const Outcome taken = TakeColumns(arrival.bundle, &found);
    if (!taken.ok() || found->size() != 1 || found->front().memory.size != rows * rows_.bytes())
      return {kInternal, "the share has not the size that it has to have",
              sink->Where(iterator.epoch, EpochStep(step))};
    Columns share = *found;
    if (world.me().trainer == options_["alter_trainer"] && step == static_cast<uint64_t>(options_["alter_step"])) {
      share[0] = Copy(share[0]);
      share[0].make<char>()[share[0].memory.size / 2] ^= 1;
    }
    const auto lane = static_cast<size_t>(world.GroupTrainerIndex(world.self)),
               lanes = static_cast<size_t>(world.group_trainer_count());
    const auto reader = static_cast<uint64_t>(world.members[static_cast<size_t>(world.sources[0])].reader);
    Outcome outcome;
    for (size_t i = 0; i < rows; ++i) {
      const uint64_t row = (step * lanes + lane) * rows + i;
      const char* const data = share[0].memory.data + i * rows_.bytes();
      ++rows_seen_;
      if (rows_.Is(data, sink->config().number, reader, iterator.epoch, row) || !outcome.ok()) continue;
      outcome = {kDataLoss,
                 "row " + std::to_string(i) + " of this share, row " + std::to_string(row) +
                     " of the epoch, is not what the source made",
                 sink->Where(iterator.epoch, EpochStep(step))};
    }
    if (sink->config().verify)
      Good(sink->Confirm(iterator, arrival, Fingerprints(sink->config()).Arrived(share, arrival.rows)));
    return outcome;
  }

  static std::vector<double> Sent() {
    const auto of = [](const std::atomic<uint64_t>& count) { return static_cast<double>(count.load()); };
    return {of(Count().bytes_sent), of(Count().messages_sent)};
  }

  // One epoch of the cached channel. All processes call this. MPI's messages cross the lines between hosts, and no
  // other messages do.
  void CachedEpoch(int64_t epoch) {
    const std::string name = "cached" + std::to_string(epoch);
    Together();
    const std::vector<double> before = Sent();
    Together();  // the first trainer's request makes all keepers send
    CachedChannel::Got got;
    if (engine_->world().me().trains()) Good(cached_->Epoch(&got));
    Together();
    const std::vector<double> after = Sent();
    const std::vector<double> mine{static_cast<double>(got.pieces),
                                   static_cast<double>(got.pieces_over),
                                   static_cast<double>(got.rows),
                                   static_cast<double>(got.rows_over),
                                   after[0] - before[0],
                                   after[1] - before[1]};
    std::vector<double> sums(mine.size());
    MPI_Request request;
    MPI_Iallreduce(mine.data(), sums.data(), static_cast<int>(mine.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD,
                   &request);
    Finish(request);
    const char* const names[] = {"pieces", "pieces_over", "rows", "rows_over", "bytes", "messages"};
    for (size_t i = 0; i < sums.size(); ++i) figures_.Add(name + "." + names[i], sums[i]);
    if (rank_ == 0) Judge(epoch, sums);
  }

  // Each of H hosts sends each of N trainers a piece in each step. In the load each row crosses a line once, unless the
  // reader's host keeps it. Later a row crosses a line if its trainer is on another host.
  void Judge(int64_t epoch, const std::vector<double>& sums) {
    constexpr double kSmall = 512;  // the most bytes of a piece beside its rows, with what its trainer answers
    const World& world = engine_->world();
    const auto hosts = static_cast<double>(world.keeper_count()), trainers = static_cast<double>(world.trainer_count()),
               steps = static_cast<double>(options_["steps"]);
    const double rows = steps * trainers * static_cast<double>(options_["rows"]),
                 row = static_cast<double>(rows_.bytes()), elsewhere = 1 - 1 / hosts;
    const double pieces = sums[0] / steps, over = sums[1] / steps, small = kSmall * sums[1];
    const double lines = (epoch == 1 ? elsewhere * rows : sums[3]) * row;
    Log("scale_job: cached, epoch " + std::to_string(epoch) + ": in each step " + std::to_string(std::llround(pieces)) +
        " pieces, " + std::to_string(std::llround(over)) + " of them from other hosts; MPI sent " +
        std::to_string(sums[4] / rows / row) + " of the data in " + std::to_string(sums[5] / steps) +
        " messages a step; beside the rows " + std::to_string((sums[4] - lines) / sums[1]) + " bytes for a piece");
    const auto check = [&](bool holds, const std::string& what) {
      if (!holds) Good({kInternal, "cached, epoch " + std::to_string(epoch) + ": " + what});
    };
    check(pieces == trainers * hosts, "other than N x H pieces in a step");
    check(over == trainers * (hosts - 1), "other than N x (H - 1) pieces from other hosts in a step");
    check(sums[2] == rows, "not all rows");
    check(epoch == 1 ? sums[3] == 0 : sums[3] <= 1.05 * elsewhere * rows, "too many rows from other hosts");
    check(sums[4] >= lines && sums[4] <= lines + small, "other bytes between hosts than those of the rows");
  }

  // Threads sleep longer when nothing has happened for a second.
  void Idle() {
    if (options_["idle_ms"] <= 0) return;
    Together();
    usleep(1500000);
    figures_.Add("idle.before", Used());
    usleep(static_cast<useconds_t>(1000 * options_["idle_ms"]));
    figures_.Add("idle.after", Used());
  }

  void ByMpi(const std::string& name) {
    Together();
    const PlainEpoch told = PlainMpi(&rows_, options_["rows"], options_["steps"], options_["prefetch"]).Run(1);
    figures_.Add(name + ".first", told.first - start_);
    figures_.Add(name + ".last", told.last - start_);
    if (told.wrong > 0) {
      Log("scale_job: process " + std::to_string(rank_) + ": " + std::to_string(told.wrong) +
          " rows that came by MPI's own calls are not what process 0 made");
    }
    wrong_ += told.wrong;
    Together();
  }

  // As horovod_data.shutdown().
  void Leave() {
    Together();
    const double begun = Now();
    for (const uint32_t channel : {kPlain, kVerified}) engine_->UnuseChannel(channel);
    if (cached_) engine_->UnuseChannel(kKept);
    engine_->Bye();
    if (engine_->world().me().reads() || (cached_ && engine_->world().me().keeper >= 0)) {
      while (!engine_->WaitAllBye(std::chrono::seconds(1))) {
      }
    }
    for (std::thread& dealer : dealers_) dealer.join();
    engine_->Stop();
    if (cached_) cached_->Join();  // readers load for keepers until then
    while (!engine_->WaitLeft(std::chrono::seconds(1))) {
    }
    figures_.Add("left", Now() - begun);
  }

  const Options options_;
  const int rank_, processes_;
  const MadeUpRows rows_{static_cast<size_t>(options_["row_bytes"])};
  std::shared_ptr<Engine> engine_;
  std::vector<std::thread> dealers_;
  std::unique_ptr<CachedChannel> cached_;  // may be null
  Figures figures_;
  double start_ = 0;
  uint64_t rows_seen_ = 0, wrong_ = 0;
};

}  // namespace
}  // namespace hvdata

int main(int argc, char** argv) {
  using namespace hvdata;  // NOLINT(google-build-using-namespace): this is the program
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string given = argv[i];
    const size_t equals = given.find('=');
    if (equals != std::string::npos && options.Set(given.substr(0, equals), given.substr(equals + 1))) continue;
    std::fprintf(stderr, "scale_job: '%s' is no option; csrc/tests/scale_job.cc lists them (Options)\n", argv[i]);
    return 2;
  }
  if (options["row_bytes"] < 32 || options["rows"] < 1 || options["hosts"] < 1 || options["rounds"] < 0 ||
      options["steps"] < 1) {
    std::fprintf(stderr,
                 "scale_job: row_bytes must be 32 or more, rows, hosts and steps 1 or more, rounds 0 or more\n");
    return 2;
  }
  if (options["by_mpi"] > 0 && options.Text("readers") != "dedicated") {
    std::fprintf(stderr, "scale_job: by_mpi has process 0 send and all others receive: leave readers out\n");
    return 2;
  }
  int level = 0, rank = 0, processes = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  const double initialized = Now();
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  const bool right = Process(options, rank, processes).Run(initialized);
  if (!right) Log("scale_job: process " + std::to_string(rank) + " has found something wrong: see above");
  MPI_Finalize();
  return right ? 0 : 1;
}
