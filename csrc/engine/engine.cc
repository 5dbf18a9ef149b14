// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <random>
#include <utility>

#include "base/counters.h"
#include "base/log.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

namespace {

uint64_t RandomSession() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32 | random()) | 1;
}

}  // namespace

Engine::Engine(World world, MPI_Comm own, const EngineSettings& settings, std::unique_ptr<HostLinks> links)
    : world_(std::move(world)),
      settings_(settings),
      session_(RandomSession()),
      peers_(world_),
      agreements_(std::make_unique<Agreements>(&world_, settings.stall_seconds, settings.timeout_seconds,
                                               [this](int member, Header h) { SendHeader(member, std::move(h)); })),
      exchange_(std::make_unique<Exchange>(
          &world_, settings.stall_seconds, settings.timeout_seconds,
          [this](int member, Header h, const Share& share) { SendShare(member, std::move(h), share); })),
      in_step_(std::make_unique<StepCoordinator>(&world_, [this](int reader, Header h) {
        SendHeader(world_.readers[static_cast<size_t>(reader)], std::move(h));
      })),
      post_(std::make_unique<Post>(&world_, std::move(links), MakeWays())),
      transport_(std::make_unique<Transport>(own, this)) {
  complete_.set_value();
}

Post::Ways Engine::MakeWays() {
  Post::Ways ways;
  ways.send_by_mpi = [this](int member, Parcel parcel) { transport_->Send(member, std::move(parcel)); };
  ways.make_landing = GetMakeLanding();
  ways.deliver = [this](int member, Header header, BundlePtr bundle) {
    Dispatch(member, std::move(header), std::move(bundle));
  };
  ways.broken = [this](const std::string& what) { Broken(world_.Name(world_.self) + ": " + what); };
  return ways;
}

Engine::~Engine() = default;

// ---- Out.

void Engine::SendHeader(int member, Header header) {
  if (member == world_.self) {
    Dispatch(member, std::move(header), nullptr);
    return;
  }
  Parcel parcel;
  parcel.header = std::move(header);
  post_->Send(member, std::move(parcel));
}

// Within the process the tensors themselves change hands.
void Engine::SendShare(int member, Header header, const Share& share) {
  if (member == world_.self) {
    Dispatch(member, std::move(header), share.bundle);
    return;
  }
  Parcel parcel;
  parcel.header = std::move(header);
  parcel.blocks = share.blocks;
  post_->Send(member, std::move(parcel));
}

// ---- In.

Landing Engine::Place(int source, const Header& header) { return post_->Place(source, header); }

void Engine::Deliver(int source, Header header, Landing landing) {
  completed_.wait();
  post_->Arrived(source, std::move(header), std::move(landing));
}

void Engine::Dispatch(int member, Header header, BundlePtr bundle) {
  switch (header.kind) {
    case Kind::kHello:
      return agreements_->OnHello(member, header);
    case Kind::kAbsent:
      return agreements_->OnAbsent(header);
    case Kind::kVerdict:
      return agreements_->OnVerdict(header);
    case Kind::kScatter:
    case Kind::kGather:
    case Kind::kCalled:
    case Kind::kWhoLeft:
    case Kind::kLeft:
      return exchange_->OnParcel(member, std::move(header), std::move(bundle));
    case Kind::kReady:
      return in_step_->OnReady(world_.members[static_cast<size_t>(member)].reader, header);
    case Kind::kBye:
      return OnBye(member, header);
    default:
      return DispatchToChannel(member, std::move(header), std::move(bundle));
  }
}

void Engine::DispatchToChannel(int member, Header header, BundlePtr bundle) {
  std::shared_ptr<Sink> sink;
  std::shared_ptr<Source> source;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = channels_.find(header.channel);
    if (found == channels_.end()) {
      // A trainer may be quicker than we are to create the channel; what comes for one that is gone is dropped.
      if (header.channel > created_) early_[header.channel].push_back({member, std::move(header)});
      return;
    }
    sink = found->second.sink;
    source = found->second.source;
  }
  const int trainer = world_.AudienceLane(member);
  const int reader = world_.SourceLane(member);
  if (source && header.kind == Kind::kGo) return source->OnGo(header);
  if (source && trainer >= 0) {
    const uint64_t limit = static_cast<uint64_t>(header.a);
    switch (header.kind) {
      case Kind::kOpen:
        return source->OnOpen(trainer, header.epoch, limit);
      case Kind::kTaken:
        return source->OnTaken(trainer, header.epoch, header.step, limit);
      case Kind::kRecalled:
        return source->OnRecalled(trainer, header.epoch, header.step, limit);
      case Kind::kClose:
        return source->OnClose(trainer, header.epoch, header.step, header.a);
      case Kind::kClaim:
        return source->OnClaim(trainer, header.epoch, header.step, header.a, header.b != 0);
      case Kind::kRelease:
        return source->OnGone(trainer);
      case Kind::kWhy:
        return source->OnWhy(trainer, header.epoch, header.step);
      case Kind::kSave:
        return source->OnSave(trainer, header.epoch, header.step, header.a);
      case Kind::kRestore:
        return source->OnRestore(trainer, header.epoch, Source::Handed::From(header), header.a);
      default:
        break;
    }
  }
  if (sink && reader >= 0) {
    switch (header.kind) {
      case Kind::kData:
        return sink->OnData(reader, header, std::move(bundle));
      case Kind::kEnd:
        return sink->OnEnd(reader, header);
      case Kind::kRecall:
        return sink->OnRecall(reader, header);
      case Kind::kBecause:
        return sink->OnBecause(header);
      case Kind::kState:
        return sink->OnState(header);
      default:
        break;
    }
  }
}

// ---- Channels.

void Engine::CreateChannel(ChannelConfig config, bool is_source) {
  const uint32_t number = config.number;
  Channel channel;
  channel.uses = 1;
  if (world_.me().trains()) {
    auto send = [this](int reader, Header h) {
      SendHeader(world_.sources[static_cast<size_t>(reader)], std::move(h));
    };
    channel.sink = std::make_shared<Sink>(config, &world_, settings_.stall_seconds, settings_.timeout_seconds,
                                          std::move(send), post_->sink_door(number));
  }
  if (is_source) {
    auto send = [this](int member, Header h, const Share* share) {
      if (share) {
        SendShare(member, std::move(h), *share);
      } else {
        SendHeader(member, std::move(h));
      }
    };
    channel.source = std::make_shared<Source>(config, &world_, settings_.stall_seconds, std::move(send),
                                              post_->source_door(number));
  }
  std::deque<Early> early;
  std::set<int> byes;
  const std::shared_ptr<Source> source = channel.source;
  {
    std::lock_guard<std::mutex> lock(mu_);
    byes = byes_;
    channels_[number] = std::move(channel);
    created_ = std::max(created_, number);
    const auto found = early_.find(number);
    if (found != early_.end()) {
      early = std::move(found->second);
      early_.erase(found);
    }
  }
  for (Early& e : early) DispatchToChannel(e.member, std::move(e.header), nullptr);
  for (int member : byes) {
    const int trainer = world_.AudienceLane(member);
    if (source && trainer >= 0) source->OnGone(trainer);
  }
}

std::shared_ptr<Sink> Engine::UseChannel(uint32_t number) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = channels_.find(number);
  if (found == channels_.end() || !found->second.sink) return nullptr;
  ++found->second.uses;
  return found->second.sink;
}

void Engine::UnuseChannel(uint32_t number) {
  std::shared_ptr<Sink> sink;  // freed outside of the lock
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = channels_.find(number);
    if (found == channels_.end() || !found->second.sink || --found->second.uses > 0) return;
    sink = std::move(found->second.sink);
    if (!found->second.source) channels_.erase(found);
    if (said_bye_ || stopped_) return;
  }
  for (int member : world_.sources) {
    Header h;
    h.kind = Kind::kRelease;
    h.channel = number;
    SendHeader(member, std::move(h));
  }
}

std::shared_ptr<Source> Engine::FindSource(uint32_t number) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = channels_.find(number);
  return found == channels_.end() ? nullptr : found->second.source;
}

void Engine::EndSource(uint32_t number) {
  std::shared_ptr<Source> source;
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = channels_.find(number);
  if (found == channels_.end()) return;
  source = std::move(found->second.source);
  if (!found->second.sink) channels_.erase(found);
}

std::string Engine::StatsJson() const {
  const TransportStats t = transport_->Stats();
  const Counters& c = Count();
  const Arena::Usage arena = post_->arena() ? post_->arena()->Read() : Arena::Usage();
  std::string json = "{";
  const auto add = [&json](const char* name, uint64_t value) {
    json += (json.size() > 1 ? ", \"" : "\"") + std::string(name) + "\": " + std::to_string(value);
  };
  add("mpi_messages_sent", t.messages_sent);
  add("mpi_bytes_sent", t.bytes_sent);
  add("mpi_messages_received", t.messages_received);
  add("mpi_bytes_received", t.bytes_received);
  add("payload_bytes_inline", c.sent_inline);
  add("payload_bytes_arena", c.sent_arena);
  add("payload_bytes_message", c.sent_message);
  add("payload_bytes_copied_to_arena", c.copied_to_arena);
  add("payload_bytes_padded", c.padded);
  add("payload_bytes_realigned", c.realigned);
  add("records_beside_full_ring", c.ring_full);
  add("arena_bytes_in_use", arena.taken);
  add("arena_bytes_reserved", arena.reserved);
  add("arena_refusals", arena.refused);
  return json + "}";
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
  Sweep();
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (stopped_ && post_->arena()) post_->arena()->Retire();  // of what trainers let go of when they end
  }
  const std::vector<int> died = peers_.Died();
  if (!died.empty()) post_->Fetch();  // what they said last
  for (int member : died) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (byes_.count(member) || (said_bye_ && stopped_)) continue;
    }
    const std::string lost = world_.Name(member) + " (process " +
                             std::to_string(world_.members[static_cast<size_t>(member)].pid) +
                             ") has died: no batch can reach it or come from it any more, the job has to end";
    Log("[" + world_.Name(world_.self) + "] " + lost);
    FailAll({kUnavailable, lost});
  }
}

}  // namespace hvdata
