// SPDX-License-Identifier: Apache-2.0
// A porter receives small messages from other hosts for all ranks of its host, and passes them on through rings. So a reader sends
// one message to each host. The porter is a reader of that host, or its first rank.
#pragma once

#include <vector>

#include "base/world.h"

namespace hvdata {

// By member: its porter. -1: it gets no shares from other hosts, or is the only trainer of its host.
std::vector<int> Porters(const World& world);

// Whether member `from` reads for member `to` from another host.
bool ReadsAfar(const World& world, int from, int to);

}  // namespace hvdata
