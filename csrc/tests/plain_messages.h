// SPDX-License-Identifier: Apache-2.0
// Messages as the tests write them down: a kind, and for what they count a step and two numbers, and a text. What each of
// these is in a message is in PlainOf and MessageOf.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "mail/share.h"
#include "wire/header.h"

namespace hvdata {

// In the order of wire::Message.
enum class Kind : size_t {
  kHello,
  kAbsent,
  kVerdict,
  kOpen,
  kTaken,
  kClose,
  kRecalled,
  kRelease,
  kWhy,
  kSave,
  kRestore,
  kWithdraw,
  kClaim,
  kData,
  kEnd,
  kRecall,
  kBecause,
  kState,
  kNumbered,
  kReady,
  kGo,
  kScatter,
  kGather,
  kCalled,
  kWhoLeft,
  kLeft,
  kBye,
  kReport,
  kVerified,
  kHowLong,
  kTimes,
  kPing,
  kPong,
};
static_assert(static_cast<size_t>(Kind::kPong) + 1 == std::variant_size_v<wire::Message>);

inline Kind KindOf(const wire::Header& header) { return static_cast<Kind>(header.message.index()); }

// In an END's b: beside what is left, how many of the last steps were had in an earlier run, and whether the reader is lost.
constexpr int kTailShift = 32;
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

inline std::string JoinNumbers(const std::vector<int32_t>& numbers) {
  std::string text;
  for (int32_t n : numbers) text += (text.empty() ? "" : " ") + std::to_string(n);
  return text;
}

inline Plain PlainOf(const wire::Message& message) {
  struct {
    using P = Plain;
    static int64_t I(uint64_t n) { return static_cast<int64_t>(n); }
    P operator()(const wire::Hello& m) { return {0, m.number, 0, m.words}; }
    P operator()(const wire::Absent& m) { return {0, 0, 0, m.text}; }
    P operator()(const wire::Verdict& m) { return {0, m.number, m.code, m.text}; }
    P operator()(const wire::Open& m) { return {0, I(m.limit.n), 0, ""}; }
    P operator()(const wire::Taken& m) { return {m.taken.n, I(m.limit.n), 0, ""}; }
    P operator()(const wire::Close& m) { return {m.taken.n, m.dropped, 0, ""}; }
    P operator()(const wire::Recalled& m) { return {m.from.n, I(m.limit.n), 0, ""}; }
    P operator()(const wire::Release&) { return {}; }
    P operator()(const wire::Why& m) { return {m.step.n, 0, 0, ""}; }
    P operator()(const wire::Save& m) { return {0, m.request, 0, ""}; }
    P operator()(const wire::Restore& m) { return {m.position.n, m.request, I(m.saved_epoch), m.state}; }
    P operator()(const wire::Withdraw&) { return {}; }
    P operator()(const wire::Claim& m) { return {m.step.n, I(m.left), m.filler, ""}; }
    P operator()(const wire::Data& m) { return {m.step.n, I(m.position.n), I(m.turn.n), ""}; }
    P operator()(const wire::End& m) {
      return {m.step.n, m.code, I(m.left | m.tail_taken.n << kTailShift) | (m.lost ? kLost : 0),
              m.code == 0 ? m.no_filler : m.text};
    }
    P operator()(const wire::Recall&) { return {}; }
    P operator()(const wire::Because& m) { return {0, 0, 0, m.text}; }
    P operator()(const wire::State& m) { return {0, m.request, m.code, m.text}; }
    P operator()(const wire::Numbered& m) { return {0, I(m.number), 0, ""}; }
    P operator()(const wire::Ready& m) { return {m.steps.n, I(static_cast<uint64_t>(m.progress)), m.code, m.text}; }
    P operator()(const wire::Go& m) { return {m.steps.n, I(static_cast<uint64_t>(m.notice)), m.code, m.text}; }
    P operator()(const wire::Scatter& m) { return {m.call, m.root, m.code, m.name}; }
    P operator()(const wire::Gather& m) { return {m.call, 0, 0, m.name}; }
    P operator()(const wire::Called& m) { return {m.call, m.root, 0, m.name}; }
    P operator()(const wire::WhoLeft&) { return {}; }
    P operator()(const wire::Left& m) { return {0, 0, 0, JoinNumbers(m.trainers)}; }
    P operator()(const wire::Bye& m) { return {0, 0, 0, JoinNumbers(m.told)}; }
    P operator()(const wire::Report& m) { return {0, 0, 0, m.words}; }
    P operator()(const wire::Verified& m) { return {0, 0, m.code, m.text}; }
    P operator()(const wire::HowLong&) { return {}; }
    P operator()(const wire::Times& m) { return {static_cast<uint64_t>(m.member), 0, 0, m.text}; }
    P operator()(const wire::Ping& m) { return {0, m.asked, 0, ""}; }
    P operator()(const wire::Pong& m) { return {0, m.asked, m.there, ""}; }
  } plain;
  return std::visit(plain, message);
}

// The way back, for the messages of a channel.
inline wire::Message MessageOf(Kind kind, Plain p) {
  const auto u = [](int64_t n) { return static_cast<uint64_t>(n); };
  const LaneStep step(p.step), limit(u(p.a));
  const auto code = static_cast<int32_t>(p.b);
  switch (kind) {
    case Kind::kOpen:
      return wire::Open{limit};
    case Kind::kTaken:
      return wire::Taken{step, limit};
    case Kind::kClose:
      return wire::Close{step, p.a};
    case Kind::kRecalled:
      return wire::Recalled{step, limit};
    case Kind::kRelease:
      return wire::Release();
    case Kind::kWhy:
      return wire::Why{EpochStep(p.step)};
    case Kind::kSave:
      return wire::Save{p.a};
    case Kind::kRestore:
      return wire::Restore{p.a, u(p.b), 0, Position(p.step), Turn(), TailStep(), p.text};
    case Kind::kWithdraw:
      return wire::Withdraw();
    case Kind::kClaim:
      return wire::Claim{TailStep(p.step), u(p.a), p.b != 0, false};
    case Kind::kData:
      return wire::Data{step, Turn(u(p.b)), Position(u(p.a))};
    case Kind::kEnd: {
      const uint64_t rest = u(p.b & ~kLost);
      wire::End end{step,
                    static_cast<int32_t>(p.a),
                    "",
                    (p.b & kLost) != 0,
                    rest & ((1ull << kTailShift) - 1),
                    TailStep(rest >> kTailShift),
                    ""};
      (p.a == 0 ? end.no_filler : end.text) = p.text;
      return end;
    }
    case Kind::kRecall:
      return wire::Recall();
    case Kind::kBecause:
      return wire::Because{p.text};
    case Kind::kState:
      return wire::State{p.a, code, p.text};
    case Kind::kNumbered:
      return wire::Numbered{u(p.a)};
    case Kind::kReady:
      return wire::Ready{static_cast<wire::Ready::Progress>(p.a), Turn(p.step), code, p.text};
    case Kind::kGo:
      return wire::Go{static_cast<wire::Go::Notice>(p.a), Turn(p.step), code, p.text};
    default:
      return wire::Bye();
  }
}

inline wire::Header MakeMessage(Kind kind, uint64_t epoch, uint64_t step = 0, int64_t a = 0, int64_t b = 0,
                                std::string text = "", uint32_t channel = 0) {
  return MakeHeader(channel, epoch, MessageOf(kind, {step, a, b, std::move(text)}));
}

// "DATA e1 0,1,0"
inline std::string TextOf(const wire::Header& header) {
  return std::string(header.name()) + " e" + std::to_string(header.epoch) + " " + PlainOf(header.message).Text();
}

}  // namespace hvdata
