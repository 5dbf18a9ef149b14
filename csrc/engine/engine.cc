// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/counters.h"
#include "base/json.h"
#include "base/log.h"
#include "base/place.h"
#include "base/random.h"

namespace hvdata {

using wire::Header;

namespace {

// Absolute: it is opened anew for each record, and the program may change its folder.
std::string FileIn(const char* variable) {
  const char* file = std::getenv(variable);
  if (file == nullptr || *file == '\0') return "";
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(file, error);
  return error ? file : absolute.string();
}

}  // namespace

Engine::Engine(World world, MPI_Comm own, const EngineSettings& settings, std::unique_ptr<HostLinks> links)
    : world_(std::move(world)),
      settings_(settings),
      session_(RandomNumber() | 1),
      peers_(world_),
      agreements_(std::make_unique<Agreements>(&world_, settings.stall_seconds, settings.timeout_seconds, MakeSend())),
      exchange_(std::make_unique<Exchange>(&world_, settings.stall_seconds, settings.timeout_seconds, MakeSend())),
      coordinator_(std::make_unique<StepCoordinator>(&world_, MakeSend())),
      certifier_(std::make_unique<Certifier>(&world_, MakeSend(), FileIn("HOROVOD_DATA_CERTIFICATE"))),
      timeline_(settings.timeline ? std::make_unique<Timeline>(&world_, MakeSend(), FileIn("HOROVOD_DATA_TIMELINE"),
                                                               settings.timeline_bytes)
                                  : nullptr),
      post_(std::make_unique<Post>(&world_, std::move(links), MakeWays())),
      transport_(std::make_unique<Transport>(own, this)) {
  complete_.set_value();
  // What lasts for long is shown in pieces: the job may be killed before it ends.
  constexpr int64_t kPiece = 1000000000;
  if (timeline_) timeline_->Begin([this] { NoteUnderWay(kPiece); });
}

Post::Ways Engine::MakeWays() {
  Post::Ways ways;
  ways.send_by_mpi = [this](int member, Parcel parcel) { transport_->Send(member, std::move(parcel)); };
  ways.make_landing = TheHooks().make_landing;
  ways.deliver = [this](int member, Header header, BundlePtr bundle) {
    Dispatch(member, std::move(header), std::move(bundle));
  };
  ways.broken = [this](const std::string& what) { Broken(world_.Name(world_.self) + ": " + what); };
  return ways;
}

Send Engine::MakeSend() {
  return [this](int member, Header header, const Share* share) { post_->Send(member, std::move(header), share); };
}

// ---- In.

Landing Engine::Land(int source, const Header& header) { return post_->Land(source, header); }

void Engine::Deliver(int source, Header header, Landing landing) {
  completed_.wait();
  post_->Arrived(source, std::move(header), std::move(landing));
}

void Engine::PassOn(int source, int member, uint32_t bells, std::string_view bag) {
  completed_.wait();
  post_->PassOn(source, member, bells, bag);
}

void Engine::Dispatch(int member, Header header, BundlePtr bundle) {
  if (std::holds_alternative<wire::Report>(header.message)) {
    return certifier_->OnReport(world_.members[static_cast<size_t>(member)].reader, header);
  }
  if (header.channel > 0 && !std::holds_alternative<wire::Ready>(header.message)) {
    return DispatchToChannel(member, std::move(header), std::move(bundle));
  }
  if (const auto* hello = std::get_if<wire::Hello>(&header.message)) return agreements_->On(member, *hello);
  if (const auto* absent = std::get_if<wire::Absent>(&header.message)) return agreements_->On(member, *absent);
  if (const auto* verdict = std::get_if<wire::Verdict>(&header.message)) return agreements_->On(member, *verdict);
  if (const auto* bye = std::get_if<wire::Bye>(&header.message)) return OnBye(member, *bye);
  if (const auto* how_long = std::get_if<wire::HowLong>(&header.message)) {
    if (how_long->anew) return static_cast<void>(TimesJson(true));
    return post_->Send(member, MakeHeader(0, 0, wire::Times{TimesJson()}));
  }
  if (const auto* times = std::get_if<wire::Times>(&header.message)) return OnTimes(member, *times);
  if (wire::IsOneOf<wire::Ping, wire::Pong, wire::Events>(header.message)) return DispatchToTimeline(member, std::move(header));
  if (!std::holds_alternative<wire::Ready>(header.message)) return exchange_->Handle(member, std::move(header), std::move(bundle));
  coordinator_->OnReady(world_.members[static_cast<size_t>(member)].reader, header);
}

void Engine::NoteUnderWay(int64_t least) {
  for (const Channel& channel : Channels()) {
    if (channel.sink) channel.sink->NoteUnderWay(least);
    if (channel.source) channel.source->clock.NoteUnderWay(least);
  }
}

void Engine::DispatchToTimeline(int member, Header header) {
  if (!timeline_) return;
  if (const auto* ping = std::get_if<wire::Ping>(&header.message)) timeline_->On(member, *ping);
  else if (const auto* pong = std::get_if<wire::Pong>(&header.message)) timeline_->On(*pong);
  else if (auto* events = std::get_if<wire::Events>(&header.message)) timeline_->On(member, std::move(*events));
}

void Engine::DispatchToChannel(int member, Header header, BundlePtr bundle) {
  Channel channel;
  {
    MutexLock lock(&mu_);
    const auto found = channels_.find(header.channel);
    if (found == channels_.end()) {
      // A trainer may be quicker than we are to create the channel; what comes for one that is gone is dropped.
      if (header.channel > created_) early_[header.channel].push_back({member, std::move(header)});
      return;
    }
    channel = found->second;
  }
  DeliverEarly(channel, header.channel);
  Deliver(channel, member, std::move(header), std::move(bundle));
}

void Engine::Deliver(const Channel& channel, int member, Header header, BundlePtr bundle) {
  if (wire::IsForReader(header.message)) {
    if (channel.source) channel.source->Handle(member, header);
  } else if (const int reader = world_.SourceIndex(member);
             channel.sink && (reader >= 0 || std::holds_alternative<wire::Verified>(header.message))) {
    channel.sink->Handle(reader, std::move(header), std::move(bundle));
  }
}

// What came while the channel was made, in front of whatever comes later.
void Engine::DeliverEarly(const Channel& channel, uint32_t number) {
  std::vector<Message> messages;
  {
    MutexLock lock(&mu_);
    if (auto early = early_.extract(number)) messages = std::move(early.mapped());
  }
  for (Message& message : messages) Deliver(channel, message.member, std::move(message.header), nullptr);
}

// ---- Channels.

void Engine::CreateChannel(ChannelConfig config) {
  const uint32_t number = config.number;
  Channel channel;
  channel.uses = 1;
  if (world_.me().trains()) {
    channel.sink = std::make_shared<Sink>(config, &world_, settings_.stall_seconds, settings_.timeout_seconds, MakeSend(),
                                          post_->sink_door(number), trace());
  }
  if (config.is_source) {
    channel.source =
        std::make_shared<Source>(config, &world_, settings_.stall_seconds, MakeSend(), post_->source_door(number), trace());
  }
  certifier_->OnChannel(config.verify);
  if (timeline_) timeline_->NameChannel(number, config.name);
  {
    MutexLock lock(&mu_);
    accounts_[config.name] = {};
    created_ = std::max(created_, number);
    channels_[number] = std::move(channel);
  }
  post_->InTurn([this, number] {
    Channel made;
    std::set<int> byes;
    {
      MutexLock lock(&mu_);
      const auto found = channels_.find(number);
      if (found == channels_.end()) return;
      made = found->second;
      byes = byes_;
    }
    DeliverEarly(made, number);
    for (int member : byes) {
      const int trainer = world_.AudienceIndex(member);
      if (made.source && trainer >= 0) made.source->OnGone(trainer);
    }
  });
  post_->FetchAll();  // before the dealer looks for an epoch
}

std::vector<Engine::Channel> Engine::Channels() {
  MutexLock lock(&mu_);
  std::vector<Channel> channels;
  for (const auto& [number, channel] : channels_) channels.push_back(channel);
  return channels;
}

std::shared_ptr<Sink> Engine::UseChannel(uint32_t number) {
  MutexLock lock(&mu_);
  const auto found = channels_.find(number);
  if (found == channels_.end() || !found->second.sink) return nullptr;
  ++found->second.uses;
  return found->second.sink;
}

void Engine::UnuseChannel(uint32_t number) {
  (void)Accounts();
  {
    MutexLock lock(&mu_);
    const auto found = channels_.find(number);
    if (found == channels_.end() || !found->second.sink || --found->second.uses > 0) return;
    FreeAfterUnlock(std::move(found->second.sink));
    if (!found->second.source) channels_.erase(found);
    if (said_bye_ || stopped_) return;
  }
  for (int member : world_.sources) post_->Send(member, MakeHeader(number, 0, wire::Release()));
  post_->Fetch();
}

std::shared_ptr<Source> Engine::FindSource(uint32_t number) {
  MutexLock lock(&mu_);
  const auto found = channels_.find(number);
  return found == channels_.end() ? nullptr : found->second.source;
}

void Engine::EndSource(uint32_t number) {
  (void)Accounts();
  MutexLock lock(&mu_);
  const auto found = channels_.find(number);
  if (found == channels_.end()) return;
  FreeAfterUnlock(std::move(found->second.source));
  if (!found->second.sink) channels_.erase(found);
}

// Those that are gone count too: when a channel goes is a matter of each process's garbage, and all are to know the same names.
std::map<std::string, Engine::Account> Engine::Accounts(bool reset) {
  std::map<std::string, Account> live;
  for (const Channel& channel : Channels()) {
    if (channel.sink) {
      Account& account = live[channel.sink->config().name];
      account.options = channel.sink->config();
      account.tally = channel.sink->tally();
      account.trainer = channel.sink->Times(reset);
    }
    if (channel.source) {
      Account& account = live[channel.source->config().name];
      account.options = channel.source->config();
      account.reader = channel.source->Times(reset);
    }
  }
  MutexLock lock(&mu_);
  for (auto& [name, account] : accounts_) {
    if (reset) account.trainer.reset(), account.reader.reset();  // those that are gone
  }
  for (const auto& [name, account] : live) {
    Account& known = accounts_[name];
    known.options = account.options;
    if (account.trainer) known.tally = account.tally, known.trainer = account.trainer;
    if (account.reader) known.reader = account.reader;  // a dealer may outlive its rank's iterators, and they it
  }
  return accounts_;
}

// How far this rank has come, for those who look for where a job has ended: " (here: channel train, epoch 2, step 17)".
std::string Engine::Position() {
  std::string position;
  for (const auto& [name, account] : Accounts()) {
    if (account.tally.epoch == 0) continue;
    position += (position.empty() ? " (here: channel " : "; channel ") + name + ", epoch " + std::to_string(account.tally.epoch) +
                ", step " + std::to_string(account.tally.steps);
  }
  return position.empty() ? "" : position + ")";
}

std::string Engine::StatsJson(bool reset) {
  const Arena::Usage arena = post_->arena() ? post_->arena()->Read() : Arena::Usage();
  std::string json = "{";
  const auto add = [&json](const char* name, uint64_t value) {
    json += (json.size() > 1 ? ", \"" : "\"") + std::string(name) + "\": " + std::to_string(value);
  };
#define HVDATA_ADD(name, shown) add(shown, Count().name);
  HVDATA_COUNTERS(HVDATA_ADD)
  add("arena_bytes_in_use", arena.taken);
  add("arena_bytes_reserved", arena.reserved);
  add("arena_refusals", arena.refused);
  json += ", \"channels\": {";
  const char* comma = "";
  for (const auto& [name, account] : Accounts()) {
    const Sink::Tally& tally = account.tally;
    json += comma + Quoted(name) + ": {\"epoch\": " + std::to_string(tally.epoch) + ", \"rows\": " +
            std::to_string(tally.rows) + ", \"steps\": " + std::to_string(tally.steps) + ", \"dropped\": " +
            std::to_string(tally.dropped) + "}";
    comma = ", ";
  }
  json += "}, \"certificates\": {";
  comma = "";
  for (const auto& [name, record] : certifier_->Last()) {
    json += comma + Quoted(name) + ": " + record;
    comma = ", ";
  }
  if (reset && world_.me().trainer == 0) ResetReaders();
  return json + "}, \"times\": " + TimesJson(reset) + "}";
}

// ---- The communication thread's turns.

void Engine::Turn() {
  completed_.wait();
  post_->Fetch();  // whatever nobody waits for
}

void Engine::Tick() {
  completed_.wait();
  agreements_->Tick();
  exchange_->Tick();
  TheHooks().sweep();
  {
    MutexLock lock(&mu_);
    if (stopped_ && post_->arena()) post_->arena()->Retire();  // of what trainers let go of when they end
  }
  const std::vector<int> died = peers_.Died();
  if (!died.empty()) post_->Fetch();  // what they said last
  for (int member : died) {
    {
      MutexLock lock(&mu_);
      if (byes_.count(member) || (said_bye_ && stopped_)) continue;
    }
    const std::string lost = world_.Name(member) + " (process " +
                             std::to_string(world_.members[static_cast<size_t>(member)].pid) +
                             ") has died" + Position() + ": no batch can reach it or come from it any more, the job has to end";
    Log(hvdata::Place(world_.Name(world_.self)) + lost);
    FailAll({kUnavailable, lost});
  }
}

}  // namespace hvdata
