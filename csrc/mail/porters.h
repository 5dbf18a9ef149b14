// SPDX-License-Identifier: Apache-2.0
// Who receives for a host: a process that gets small messages from other hosts for all ranks of its own in one, in memory that
// they map, so that a reader sends as many messages as there are hosts. No process of its own: a reader of that host, or its
// first rank.
#pragma once

#include <vector>

#include "base/world.h"

namespace hvdata {

// By member: its host's porter, or -1 for those that get no shares from other hosts or are alone on theirs.
std::vector<int> Porters(const World& world);

// Whether what reader `from` sends to rank `to` comes from another host.
bool ReadsAfar(const World& world, int from, int to);

}  // namespace hvdata
