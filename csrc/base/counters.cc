// SPDX-License-Identifier: Apache-2.0
#include "base/counters.h"

namespace hvdata {

Counters counters;

}  // namespace hvdata
