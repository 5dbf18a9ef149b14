// SPDX-License-Identifier: Apache-2.0
// The C functions for the keepers of channels with cache="job". They follow the rules of c_api.cc.
#include <memory>
#include <string>

#include "cache/keeper.h"
#include "engine/c_api.h"
#include "engine/engine.h"
#include "engine/mpi_process.h"

using namespace hvdata;  // NOLINT: this file is the C interface of that namespace

// All other symbols of this library are hidden.
#pragma GCC visibility push(default)

extern "C" {

// Deals one epoch of a kept channel that hvdata_source_wait has returned, and returns when all trainers have ended it.
// Errors go to the trainers. `load`: the channel that fills this keeper's memory. `number`: of the epoch, over all
// runs.
int hvdata_keep(uint32_t kept, uint32_t load, uint64_t epoch, uint64_t number) {
  return WithRunning([&](Engine& engine) {
    const std::shared_ptr<Keeper> keeper = engine.KeeperOf(kept, load);
    if (!keeper) return Report(Outcome(kFailedPrecondition, "channel " + std::to_string(kept) + " is not kept here"));
    OrAbort(engine.world().Here(), [&] { keeper->Deal(epoch, number); });
    return int{kOk};
  });
}

// Call it when hvdata_source_wait has said that the kept channel has ended. Ends the load, and frees the memory.
int hvdata_keep_end(uint32_t kept) {
  return WithEngine([&](Engine& engine) { engine.EndKeeper(kept); });
}

}  // extern "C"
