// SPDX-License-Identifier: Apache-2.0
// A porter receives small messages from other hosts for all ranks of its host. It passes them on through rings. So a
// reader sends one message to each host. The porter is a reader of that host, or its first rank.
#pragma once

#include <vector>

#include "base/world.h"

namespace hvdata {

// By member: its porter. -1: the member has no porter. It gets no shares from other hosts, or it is the only trainer of
// its host.
std::vector<int> Porters(const World& world);

// True if member `from` is a reader for member `to`, and they are on different hosts.
bool ReadsAfar(const World& world, int from, int to);

}  // namespace hvdata
