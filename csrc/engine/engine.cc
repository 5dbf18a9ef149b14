// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <unistd.h>

#include <utility>

#include "base/counters.h"
#include "base/exceptions.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/mpi_process.h"
#include "rows/bundle.h"
#include "transport/check.h"

namespace hvdata {

using wire::Header;

namespace {

// Never destroyed: a static destructor would join a thread in a process that exits without shutdown(), or in a forked
// child.
struct Process {
  Mutex mu;
  std::shared_ptr<Engine> engine GUARDED_BY(mu);
  EngineState state GUARDED_BY(mu) = EngineState::kNone;
  std::string broken GUARDED_BY(mu);
};

Process& ThisProcess() {
  static Process* const process = new Process;
  return *process;
}

}  // namespace

// ---- The start, and the errors if no engine runs.

Outcome ShutDownOutcome() {
  return {
      kFailedPrecondition,
      "horovod_data has been shut down on this rank, or MPI has been finalised. Shut down when nothing more is to be "
      "read; a process can't join again"};
}

Outcome Engine::Start(MPI_Comm comm, std::vector<Member> roles, const EngineSettings& settings) {
  WatchForks();
  KeepReserve();
  int self = 0;
  MPI_Comm own = MPI_COMM_NULL;
  if (MPI_Comm_rank(comm, &self) != MPI_SUCCESS || MPI_Comm_dup(comm, &own) != MPI_SUCCESS) {
    return {kInternal, "MPI could not duplicate the communicator given to init()"};
  }
  MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
  const int64_t pid = getpid();
  int64_t mine[2] = {pid, static_cast<int64_t>(ProcessStartTime(pid))};
  std::vector<int64_t> all(2 * roles.size());
  Check(MPI_Allgather(mine, 2, MPI_INT64_T, all.data(), 2, MPI_INT64_T, own), "MPI_Allgather");
  for (size_t i = 0; i < roles.size(); ++i) {
    roles[i].pid = all[2 * i];
    roles[i].started = static_cast<uint64_t>(all[2 * i + 1]);
  }
  World world = World::Of(self, std::move(roles));
  auto links = std::make_unique<HostLinks>(world, settings.payload, settings.arena_bytes,
                                           [own](const std::string& mine) { return GatherOver(own, mine); });
  std::shared_ptr<Engine> engine(new Engine(std::move(world), own, settings, std::move(links)));
  Process& process = ThisProcess();
  MutexLock lock(&process.mu);
  FreeAfterUnlock(std::exchange(process.engine, engine));
  process.state = EngineState::kRunning;
  return {};
}

std::shared_ptr<Engine> Engine::Current() {
  if (InForkedChild()) return nullptr;
  Process& process = ThisProcess();
  MutexLock lock(&process.mu);
  return process.engine;
}

EngineState Engine::State() {
  if (InForkedChild()) return EngineState::kForked;
  Process& process = ThisProcess();
  MutexLock lock(&process.mu);
  return process.state;
}

Outcome Engine::NotRunning() {
  switch (State()) {
    case EngineState::kNone:
      return {kFailedPrecondition, "horovod_data is not initialized: call horovod_data.init() first"};
    case EngineState::kForked:
      return {kFailedPrecondition,
              "this is a forked child of a process that uses horovod_data; MPI does not survive a fork. Use the "
              "'spawn' start method, or fork before init()"};
    case EngineState::kBroken: {
      MutexLock lock(&ThisProcess().mu);
      return {kUnavailable, ThisProcess().broken};
    }
    default:
      return ShutDownOutcome();
  }
}

void Engine::NoteEnd(EngineState state, const std::string& why) {
  Process& process = ThisProcess();
  MutexLock lock(&process.mu);
  if (process.engine.get() != this || process.state != EngineState::kRunning) return;
  process.state = state;
  process.broken = why;
}

Engine::Engine(const World& world, MPI_Comm own, const EngineSettings& settings, std::unique_ptr<HostLinks> links)
    : worlds_{world.As(View::kJob), world.As(View::kLoad), world.As(View::kKept)},
      settings_(settings),
      session_(RandomNumber() | 1),
      peers_(world_),
      agreements_(std::make_unique<Agreements>(&world_, settings.stall_seconds, settings.timeout_seconds, MakeSend())),
      exchange_(std::make_unique<Exchange>(&world_, settings.stall_seconds, settings.timeout_seconds, MakeSend())),
      coordinator_(std::make_unique<StepCoordinator>(&world_, MakeSend())),
      certifiers_{MakeCertifier(View::kJob), MakeCertifier(View::kLoad), MakeCertifier(View::kKept)},
      comparer_(std::make_unique<StreamComparer>(&world_, MakeSend())),
      timeline_(settings.timeline.empty()
                    ? nullptr
                    : std::make_unique<Timeline>(&world_, MakeSend(), settings.timeline, settings.timeline_bytes)),
      post_(std::make_unique<Post>(&world_, std::move(links), MakeWays())),
      transport_(std::make_unique<Transport>(own, post_.get())) {
  transport_->Begin([this] { Tick(); }, [this] { return CheckDescriptors(); });
}

std::unique_ptr<Certifier> Engine::MakeCertifier(View view) {
  return std::make_unique<Certifier>(&WorldOf(view), MakeSend(), settings_.certificate);
}

Post::Ways Engine::MakeWays() {
  return {
      [this](int member, Packet packet) { transport_->Send(member, std::move(packet)); }, LandShare,
      [this](int member, Header header, BundlePtr bundle) { Dispatch(member, std::move(header), std::move(bundle)); },
      [this](const std::string& what) { Broken(what); }};
}

Send Engine::MakeSend() {
  return [this](int member, Header header, const Share* share) { post_->Send(member, std::move(header), share); };
}

// ---- Incoming messages.

void Engine::Dispatch(int member, Header header, BundlePtr bundle) {
  if (const auto* report = std::get_if<wire::Report>(&header.message)) {
    const World& world = WorldOf(report->view);
    return CertifierOf(report->view).OnReport(world.members[static_cast<size_t>(member)].reader, header);
  }
  if (std::holds_alternative<wire::Pulled>(header.message))
    return comparer_->OnPulled(world_.members[static_cast<size_t>(member)].reader, header);
  if (header.channel > 0 && !std::holds_alternative<wire::Ready>(header.message)) {
    return channels_.Deliver(member, std::move(header), std::move(bundle));
  }
  if (const auto* hello = std::get_if<wire::Hello>(&header.message)) return agreements_->On(member, *hello);
  if (const auto* verdict = std::get_if<wire::Verdict>(&header.message)) return agreements_->On(member, *verdict);
  if (const auto* bye = std::get_if<wire::Bye>(&header.message)) return OnBye(member, *bye);
  if (const auto* how_long = std::get_if<wire::HowLong>(&header.message)) {
    if (how_long->anew) return static_cast<void>(channels_.Accounts(true));
    return SendTimes(member);
  }
  if (const auto* times = std::get_if<wire::Times>(&header.message)) return OnTimes(*times);
  if (const auto* ping = std::get_if<wire::Ping>(&header.message))
    return timeline_ ? timeline_->On(member, *ping) : void();
  if (const auto* pong = std::get_if<wire::Pong>(&header.message)) return timeline_ ? timeline_->On(*pong) : void();
  if (!std::holds_alternative<wire::Ready>(header.message))
    return exchange_->Handle(member, std::move(header), std::move(bundle));
  coordinator_->OnReady(world_.members[static_cast<size_t>(member)].reader, header);
}

void Engine::NoteUnderWay(int64_t least) {
  for (const Channel& channel : channels_.All()) {
    if (channel.sink) channel.sink->NoteUnderWay(least);
    if (channel.source) channel.source->clock.NoteUnderWay(least);
  }
}

// ---- Channels.

void Engine::CreateChannel(const ChannelConfig& config) {
  const uint32_t number = config.number;
  const World& world = WorldOf(config.view);
  if (config.view != View::kJob) caches_ = true;
  // The ranks that wait for a load have a time limit. The load itself has none.
  const double timeout_seconds = config.view == View::kLoad ? 0 : settings_.timeout_seconds;
  Channel channel;
  if (world.me().trains()) {
    channel.sink = std::make_shared<Sink>(config, &world, settings_.stall_seconds, timeout_seconds, MakeSend(),
                                          Watched(post_->Door(false, number)), trace());
  }
  if (config.is_source) {
    channel.source = std::make_shared<Source>(config, &world, settings_.stall_seconds, MakeSend(),
                                              Watched(post_->Door(true, number)), trace());
  }
  CertifierOf(View::kJob).OnChannel(config.verify);
  if (timeline_) timeline_->NameChannel(number, config.name);
  channels_.Add(config, std::move(channel));
  post_->InTurn([this, number] {
    channels_.DeliverEarly(number);
    std::set<int> byes;
    {
      MutexLock lock(&mu_);
      byes = byes_;
    }
    for (const int member : byes) channels_.OnDeparted(member);
  });
  post_->FetchAll();  // before the dealer looks for an epoch
}

void Engine::UnuseChannel(uint32_t number) {
  const std::shared_ptr<Sink> sink = channels_.Find(number).sink;
  if (!channels_.Unuse(number)) return;
  {
    MutexLock lock(&mu_);
    if (said_bye_ || stopped_) return;
  }
  for (const int member : sink->world().sources) post_->Send(member, MakeHeader(number, 0, wire::Release()));
  post_->Fetch();
}

std::shared_ptr<Keeper> Engine::FindKeeper(uint32_t kept) {
  MutexLock lock(&mu_);
  const auto found = keepers_.find(kept);
  return found == keepers_.end() ? nullptr : found->second;
}

std::shared_ptr<Keeper> Engine::KeeperOf(uint32_t kept, uint32_t load) {
  if (const std::shared_ptr<Keeper> keeper = FindKeeper(kept)) return keeper;
  const std::shared_ptr<Source> source = channels_.Find(kept).source;
  const std::shared_ptr<Sink> sink = channels_.Find(load).sink;
  if (!source || !sink) return nullptr;
  MutexLock lock(&mu_);
  return keepers_[kept] = std::make_shared<Keeper>(sink, source, post_.get());
}

void Engine::EndKeeper(uint32_t kept) {
  if (const std::shared_ptr<Keeper> keeper = FindKeeper(kept)) keeper->End();
}

Keeper::Account Engine::KeptOf(uint32_t kept) {
  const std::shared_ptr<Keeper> keeper = FindKeeper(kept);
  return keeper ? keeper->Read() : Keeper::Account();
}

// The positions of this rank in its channels, for log lines about the end of the job. For example: " (here: channel
// train, epoch 2, step 17)".
std::string Engine::Whereabouts() {
  std::string place;
  for (const auto& [name, account] : channels_.Accounts()) {
    if (account.tally.epoch == 0 || account.options.view == View::kLoad) continue;
    place += (place.empty() ? " (here: channel " : "; channel ") + name + ", epoch " +
             std::to_string(account.tally.epoch) + ", step " + std::to_string(account.tally.steps);
  }
  return place.empty() ? "" : place + ")";
}

void Engine::LogEnd(int status) {
  Log(world_.Here(),
      "the program ends with status " + std::to_string(status) + Whereabouts() + ", and the job with it");
}

std::string Engine::Stats() const {
  const Arena::Usage arena = post_->arena() ? post_->arena()->Read() : Arena::Usage();
  std::string text;
  const auto put = [&text](const char* name, uint64_t number) {
    text += std::string(name) + " " + std::to_string(number) + "\n";
  };
#define HVDATA_PUT(name, shown) put(shown, Count().name.load());
  HVDATA_COUNTERS(HVDATA_PUT)
  put("arena_bytes_in_use", arena.taken);
  put("arena_bytes_reserved", arena.reserved);
  put("arena_refusals", arena.refused);
  return text;
}

// Several certifiers may know channels of one name. The record of the newest channel comes last, and counts.
std::string Engine::Certificates() const {
  std::multimap<uint32_t, std::string> by_channel;
  for (const auto& certifier : certifiers_) {
    std::vector<uint32_t> channels;
    const std::vector<std::string> records = certifier->Last(&channels);
    for (size_t i = 0; i < records.size(); ++i) by_channel.emplace(channels[i], records[i]);
  }
  std::string lines;
  for (const auto& [channel, record] : by_channel) lines += record + "\n";
  return lines;
}

// The communication thread calls it.
void Engine::Tick() {
  // Long activities are recorded in pieces, because the job may be killed before they end.
  constexpr int64_t kPiece = 1000000000;
  agreements_->Tick();
  exchange_->Tick();
  if (timeline_) timeline_->Tick([this] { NoteUnderWay(kPiece); });
  sweep_tensors();
  {
    MutexLock lock(&mu_);
    if (stopped_ && post_->arena()) post_->arena()->Retire();  // frees what trainers have given back since
  }
  const std::vector<int> died = peers_.Died();
  if (!died.empty()) post_->Fetch();  // their last messages may contain BYE
  const auto self = static_cast<size_t>(world_.self);
  for (int member : died) {
    {
      MutexLock lock(&mu_);
      const bool serves_us = HasToServe(world_.members[static_cast<size_t>(member)]) || Porters(world_)[self] == member;
      if ((said_bye_ && stopped_) || (byes_.count(member) && (said_bye_ || !serves_us))) continue;
    }
    const std::string lost = world_.Name(member) + " (process " +
                             std::to_string(world_.members[static_cast<size_t>(member)].pid) + ") has died" +
                             Whereabouts() + ": no batch can reach it or come from it any more, so the job has to end";
    Log(world_.Here(), lost);
    FailAll({kUnavailable, lost});
  }
}

}  // namespace hvdata
