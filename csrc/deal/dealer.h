// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "channel/source.h"
#include "deal/input.h"
#include "mail/post.h"

namespace hvdata {

// Deals one epoch that Source::WaitEpoch returned, and returns when every trainer has ended or closed it. Errors go to
// the trainers. `make` makes the pipeline. `anew`: it is the first one of a new dataset.
void DealEpoch(Source* source, Post* post, const std::function<std::unique_ptr<Pipeline>()>& make, uint64_t number,
               bool anew, Division division);

}  // namespace hvdata
