// SPDX-License-Identifier: Apache-2.0
// An envelope has several small messages: a frame, and then each message behind its label. A reader sends it to a rank,
// or to the porter of another host (mail/host_links.h). The porter sends each rank an envelope of that rank's messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvdata::wire {

class Envelope {
 public:
  static constexpr size_t kFrameBytes = 6, kLabelBytes = 12;

  // Adds a message. Before the next call, the caller appends the message to the returned string. `member`: the receiver
  // of the message. In a porter's envelope to a rank it is the sender. `bells`: the bells to ring at the receiver, bit
  // c % 32 for channel c.
  std::string* Add(int member, uint32_t bells);

  size_t count() const { return count_; }  // messages
  size_t bytes() const { return bytes_.size(); }
  uint32_t bells() const { return bells_; }  // of all messages
  // The member of all messages. -1: there are several members, or no messages.
  int member() const { return member_; }

  // Returns all bytes and empties the envelope. A single message begins after kFrameBytes + kLabelBytes.
  std::string Take();

 private:
  void Close();

  std::string bytes_;
  size_t count_ = 0;
  size_t label_at_ = 0;  // where the label of the last message begins
  uint32_t bells_ = 0;
  int member_ = -1;
};

// One message of an envelope.
struct Enclosed {
  uint32_t member = 0, bells = 0;
  std::string_view message;
};

// True if `bytes` begin with an envelope's magic number. No message begins with it.
bool IsEnvelope(std::string_view bytes);

// Gives the messages of `envelope` in order, as views into it: at least one, none of them empty. False if `envelope` is
// not valid. Then `*error` says why.
bool OpenEnvelope(std::string_view envelope, std::vector<Enclosed>* messages, std::string* error);

}  // namespace hvdata::wire
