// SPDX-License-Identifier: Apache-2.0
// Hands descriptors of shared memory to processes of the same user and host, over a Unix socket. Its name is abstract,
// so no file is left behind. No function waits, so the processes agree in another way when to call the next one. After a
// failure errno says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/descriptors.h"

namespace hvdata {

// Comes with each descriptor. A stranger doesn't know the token.
struct Greeting {
  uint64_t token;   // the receiver's
  uint64_t member;  // the sender
};

// Listens under this random name. Processes of all users in the network namespace can see it.
Descriptor Listen(uint64_t name);

// Calls the process that listens under this name. The call and what is sent wait there until Accept().
// EAGAIN: the listener's backlog is full (128 calls on old systems).
Descriptor Call(uint64_t name);

// Returns the next call that waits. No descriptor: no call waits, or this process can open no more files.
Descriptor Accept(const Descriptor& listener);

// Sends 1 to kMostHanded descriptors. ETOOMANYREFS: this user has as many on the way as a process may open files.
bool HandOver(const Descriptor& peer, const Greeting& greeting, std::initializer_list<int> fds);

// Receives one greeting with exactly `count` descriptors. False: nothing else is there, or another user has sent it.
bool TakeOver(const Descriptor& peer, Greeting* greeting, Descriptor* fds, size_t count);

constexpr size_t kMostHanded = 2;
constexpr int kBacklog = 4096;  // calls that wait: more than the ranks of a host

}  // namespace hvdata
