// SPDX-License-Identifier: Apache-2.0
// Several small messages from one process to another as one: a frame, and then each message with its size before it. A message
// alone travels as it is. Neither MPI nor TensorFlow.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hvdata::wire {

class Mailbag {
 public:
  static constexpr size_t kSizeBytes = 4;
  static constexpr size_t kFrameBytes = 6 + kSizeBytes;  // in front of the first message

  // One more message: all that the caller appends to `*Add()` before the next call.
  std::string* Add();
  size_t count() const { return count_; }
  size_t bytes() const { return bytes_.size(); }

  // What is sent: a bag, or the only message there is. It begins at `*offset` in what is returned. The bag is empty then.
  std::string Take(size_t* offset);

 private:
  void Close();

  std::string bytes_;
  size_t count_ = 0, open_ = 0;  // where the size of the last message is to be written
};

// Whether `message` begins as a bag does. No other message does.
bool IsMailbag(std::string_view message);

// The messages in `bag`, as views into it, in the order in which they were put there: at least one, none of them empty. Never
// reads outside of `bag`, never allocates more than a small multiple of its size. On failure returns false and says why.
bool Unpack(std::string_view bag, std::vector<std::string_view>* messages, std::string* error);

}  // namespace hvdata::wire
