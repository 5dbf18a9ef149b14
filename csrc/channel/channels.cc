// SPDX-License-Identifier: Apache-2.0
#include "channel/channels.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace hvdata {

using wire::Header;

namespace {
constexpr size_t kUnnamed = 16;  // channels without names of their own that have an account; equal on every process
}  // namespace

void Channels::Add(const ChannelConfig& config, Channel channel) {
  MutexLock lock(&mu_);
  accounts_[config.name] = {};
  accounts_[config.name].options = config;
  if (config.name == "channel" + std::to_string(config.number)) {  // the name that a channel without name gets
    unnamed_.push_back(config.name);
    if (unnamed_.size() > kUnnamed) {
      accounts_.erase(unnamed_.front());
      unnamed_.pop_front();
    }
  }
  made_ = std::max(made_, config.number);
  if (channel.sink || channel.source) channels_[config.number] = std::move(channel);
}

std::vector<Channel> Channels::All() const {
  MutexLock lock(&mu_);
  std::vector<Channel> channels;
  for (const auto& [number, channel] : channels_) channels.push_back(channel);
  return channels;
}

std::shared_ptr<Sink> Channels::Use(uint32_t number) {
  MutexLock lock(&mu_);
  const auto found = channels_.find(number);
  if (found == channels_.end() || !found->second.sink) return nullptr;
  ++found->second.uses;
  return found->second.sink;
}

bool Channels::Unuse(uint32_t number) {
  (void)Accounts();
  MutexLock lock(&mu_);
  const auto found = channels_.find(number);
  if (found == channels_.end() || !found->second.sink || --found->second.uses > 0) return false;
  FreeAfterUnlock(std::move(found->second.sink));
  if (!found->second.source) channels_.erase(found);
  return true;
}

Channel Channels::Find(uint32_t number) const {
  MutexLock lock(&mu_);
  const auto found = channels_.find(number);
  return found == channels_.end() ? Channel() : found->second;
}

void Channels::EndSource(uint32_t number) {
  (void)Accounts();
  MutexLock lock(&mu_);
  const auto found = channels_.find(number);
  if (found == channels_.end()) return;
  FreeAfterUnlock(std::move(found->second.source));
  if (!found->second.sink) channels_.erase(found);
}

// ---- The network.

void Channels::Deliver(int member, Header header, BundlePtr bundle) {
  {
    MutexLock lock(&mu_);
    if (header.channel > made_) {
      std::vector<Message>& early = early_[header.channel];
      return early.push_back({member, std::move(header)});
    }
  }
  const Channel channel = DeliverEarly(header.channel);
  Deliver(channel, member, std::move(header), std::move(bundle));
}

Channel Channels::DeliverEarly(uint32_t number) {
  Channel channel;
  std::vector<Message> messages;
  {
    MutexLock lock(&mu_);
    const auto found = channels_.find(number);
    if (found == channels_.end()) return {};
    channel = found->second;
    if (auto early = early_.extract(number)) messages = std::move(early.mapped());
  }
  for (Message& message : messages) Deliver(channel, message.member, std::move(message.header), nullptr);
  return channel;
}

void Channels::Deliver(const Channel& channel, int member, Header header, BundlePtr bundle) const {
  if (wire::IsForReader(header.message)) {
    if (channel.source) channel.source->Handle(member, header);
  } else if (channel.sink) {
    const int reader = channel.sink->world().SourceIndex(member);
    if (reader >= 0 || std::holds_alternative<wire::Verified>(header.message))
      channel.sink->Handle(reader, std::move(header), std::move(bundle));
  }
}

void Channels::OnDeparted(int member) {
  for (const Channel& channel : All()) {
    if (!channel.source || channel.source->config().view == View::kLoad) continue;
    const int trainer = channel.source->world().GroupTrainerIndex(member);
    if (trainer >= 0) channel.source->Depart(trainer);
  }
}

// Includes ended channels. A channel ends when a process's garbage collector runs, but all processes must know the same
// names.
std::map<std::string, Channels::Account> Channels::Accounts(bool reset) {
  const MutexLock one_look(&looking_);  // otherwise a slow look could overwrite the result of a later look
  std::vector<std::pair<std::string, Account>> live;
  for (const Channel& channel : All()) {
    auto& [name, account] = live.emplace_back();
    name = channel.sink ? channel.sink->config().name : channel.source->config().name;
    if (channel.sink) account.tally = channel.sink->tally(), account.trainer = channel.sink->Times(reset);
    if (channel.source) account.reader = channel.source->Times(reset);
  }
  MutexLock lock(&mu_);
  for (auto& [name, account] : accounts_) {
    if (reset) account.trainer.reset(), account.reader.reset();  // ended channels
  }
  for (const auto& [name, account] : live) {
    const auto known = accounts_.find(name);
    if (known == accounts_.end()) continue;
    // The sink or the source may have ended. Its last times stay.
    if (account.trainer) known->second.tally = account.tally, known->second.trainer = account.trainer;
    if (account.reader) known->second.reader = account.reader;
  }
  return accounts_;
}

}  // namespace hvdata
