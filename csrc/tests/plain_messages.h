// SPDX-License-Identifier: Apache-2.0
// Messages of a channel as the tests write them down: a step, two numbers and a text. PlainOf says what these are of
// each kind.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "mail/share.h"
#include "wire/header.h"

namespace hvdata {

template <typename M>
bool Is(const wire::Header& header) {
  return std::holds_alternative<M>(header.message);
}

// In an END's b, beside its leftovers: the reader is lost.
constexpr int64_t kLost = 1ll << 62;

struct Plain {
  uint64_t step = 0;
  int64_t a = 0, b = 0;
  std::string text;

  // "0,1,0 text"
  std::string Text() const {
    return std::to_string(step) + "," + std::to_string(a) + "," + std::to_string(b) + (text.empty() ? "" : " " + text);
  }
};

struct PlainVisitor {
  using P = Plain;
  static int64_t I(uint64_t n) { return static_cast<int64_t>(n); }
  P operator()(const wire::Open& m) { return {0, I(m.limit.n), 0, ""}; }
  P operator()(const wire::Taken& m) { return {m.taken.n, I(m.limit.n), 0, ""}; }
  P operator()(const wire::Close& m) { return {m.taken.n, m.dropped, 0, ""}; }
  P operator()(const wire::Recalled& m) { return {m.from.n, I(m.limit.n), 0, ""}; }
  P operator()(const wire::Why& m) { return {m.step.n, 0, 0, ""}; }
  P operator()(const wire::Save& m) { return {0, m.request, 0, ""}; }
  P operator()(const wire::Restore& m) { return {m.position.n, m.request, I(m.saved_epoch), m.state}; }
  P operator()(const wire::Claim& m) { return {m.step.n, I(m.leftover), m.filler, ""}; }
  P operator()(const wire::Data& m) { return {m.step.n, I(m.position.n), I(m.turn.n), ""}; }
  P operator()(const wire::End& m) {
    return {m.step.n, m.outcome.code, I(m.leftovers) | (m.lost ? kLost : 0),
            m.outcome.ok() ? m.no_filler : m.outcome.Text()};
  }
  P operator()(const wire::Because& m) { return {0, 0, 0, m.text}; }
  P operator()(const wire::State& m) { return {0, m.request, m.outcome.code, m.outcome.Text()}; }
  P operator()(const wire::Numbered& m) { return {0, I(m.number), 0, ""}; }
  P operator()(const wire::Ready& m) {
    return {m.steps.n, I(static_cast<uint64_t>(m.progress)), m.outcome.code, m.outcome.Text()};
  }
  P operator()(const wire::Pulled& m) {
    return {m.first, I(static_cast<uint64_t>(m.progress)), I(m.hashes.size()), ""};
  }
  P operator()(const wire::Alike& m) { return {0, 0, m.outcome.code, m.outcome.Text()}; }
  P operator()(const wire::Report& m) { return {0, 0, m.outcome.code, m.words + m.outcome.Text()}; }
  template <typename Other>
  P operator()(const Other&) {
    return {};
  }
};

inline Plain PlainOf(const wire::Message& message) { return std::visit(PlainVisitor(), message); }

// "DATA e1 0,1,0"
inline std::string TextOf(const wire::Header& header) {
  return std::string(header.name()) + " e" + std::to_string(header.epoch) + " " + PlainOf(header.message).Text();
}

inline wire::Data DataAt(uint64_t step, uint64_t position = 0, uint64_t turn = 0) {
  wire::Data data;
  data.step = LaneStep(step), data.position = Position(position), data.turn = Turn(turn);
  return data;
}

inline wire::End EndAt(uint64_t step, int32_t code = 0, std::string text = "") {
  wire::End end;
  end.step = LaneStep(step), end.outcome = {code, std::move(text)};
  return end;
}

}  // namespace hvdata
