// SPDX-License-Identifier: Apache-2.0
// Hands descriptors of shared memory to processes of the same user and host, over a Unix socket. The socket's name is
// abstract, so no file is left behind. No function waits. So the processes must agree in another way when each calls
// the next function. After a failure errno has the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/descriptors.h"

namespace hvdata {

// Sent with the descriptors. A process outside the job doesn't know the token.
struct Greeting {
  uint64_t token;   // of the receiver
  uint64_t member;  // number of the sender
};

// Listens under this random name. Processes of all users in the network namespace can see it.
Descriptor Listen(uint64_t name);

// Calls the process that listens under this name. The call, and greetings sent over it, wait until that process calls
// Accept(). EAGAIN: the listener's backlog is full (128 calls on old systems).
Descriptor Call(uint64_t name);

// Returns the next call that waits. No descriptor: no call waits, or this process can open no more files.
Descriptor Accept(const Descriptor& listener);

// Sends 1 to kMostHanded descriptors. ETOOMANYREFS: too many descriptors of this user are on the way. The limit is the
// number of files that a process may open.
bool HandOver(const Descriptor& peer, const Greeting& greeting, std::initializer_list<int> fds);

// Receives one greeting with exactly `count` descriptors. False: nothing has come, or a greeting of another form, or of
// another user.
bool TakeOver(const Descriptor& peer, Greeting* greeting, Descriptor* fds, size_t count);

constexpr size_t kMostHanded = 2;
constexpr int kBacklog = 4096;  // the most calls that wait: more than the ranks of a host

}  // namespace hvdata
