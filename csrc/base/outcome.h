// SPDX-License-Identifier: Apache-2.0
// How a call ended, and where. The codes are TensorFlow's, but this file does not need TensorFlow. The place stays
// apart from the message until both are shown, so that nothing has to parse a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace hvdata {

// The values of absl::StatusCode that this library uses. Other values pass unchanged.
enum Code : int {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

// Where something happened. Parts that are unknown are empty.
struct Place {
  std::string process = {};  // World::Name() or ReaderName(): rank and host
  std::string work = {};     // "channel train", or "scatter 'x', call 3"
  std::optional<uint64_t> epoch = {}, step = {};
  bool own_step = false;  // a reader that takes turns with other readers counts its own steps

  bool known() const { return !process.empty(); }
  // "rank 2 on node1, channel train, epoch 2, step 17"
  std::string Text() const {
    std::string text = process;
    if (!work.empty()) text += ", " + work;
    if (epoch) text += ", epoch " + std::to_string(*epoch);
    if (step) text += ", step " + std::to_string(*step) + (own_step ? " of its own" : "");
    return text;
  }
};

// What the program or the log shows: "[rank 2 on node1] text".
inline std::string Placed(const Place& place, const std::string& text) {
  return place.known() ? "[" + place.Text() + "] " + text : text;
}

struct Outcome {
  int code = kOk;
  std::string message;
  Place place;

  Outcome() = default;
  Outcome(int c, std::string m, Place at = {}) : code(c), message(std::move(m)), place(std::move(at)) {}
  bool ok() const { return code == kOk; }
  std::string Text() const { return Placed(place, message); }
  // The same outcome. An error without a place gets the place `where`.
  Outcome At(const Place& where) const { return ok() || place.known() ? *this : Outcome(code, message, where); }
};

inline Outcome InvalidArgument(std::string message) { return {kInvalidArgument, std::move(message)}; }

// Returns from the function if the call has failed.
#define HVDATA_RETURN_IF_ERROR(call)                                    \
  do {                                                                  \
    if (::hvdata::Outcome failed = (call); !failed.ok()) return failed; \
  } while (false)

}  // namespace hvdata
