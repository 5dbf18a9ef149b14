// SPDX-License-Identifier: Apache-2.0
// How the C functions of this library report errors.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <type_traits>

#include "base/exceptions.h"
#include "base/outcome.h"
#include "engine/engine.h"

namespace hvdata {

constexpr int kPending = -1;

inline thread_local std::string last_error;

inline int Report(int code) { return code; }
inline int Report(const Outcome& outcome) {
  last_error = outcome.Text();
  return outcome.code;
}

// Returns what `body` reports: a code, an Outcome, or nothing. An exception that leaves a C function would end the
// process.
template <typename Body>
int Run(Body body) try {
  if constexpr (std::is_void_v<decltype(body())>)
    return body(), kOk;
  else
    return Report(body());
} catch (const std::exception& thrown) {
  try {
    return Report(Explained(thrown));
  } catch (const std::exception&) {  // no memory for the text
    last_error.clear();
    return kResourceExhausted;
  }
}

// Calls `body` with this process's engine, as Run. Does nothing without an engine.
template <typename Body>
int WithEngine(Body body) {
  const std::shared_ptr<Engine> engine = Engine::Current();
  return engine ? Run([&] { return body(*engine); }) : kOk;
}

// As WithEngine, but reports an error if no engine runs.
template <typename Body>
int WithRunning(Body body) {
  if (Engine::State() != EngineState::kRunning) return Report(Engine::NotRunning());
  return WithEngine(body);
}

}  // namespace hvdata
