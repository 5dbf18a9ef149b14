// SPDX-License-Identifier: Apache-2.0
// One trainer's part of one step, before it travels and after.
#ifndef HOROVOD_DATA_MAIL_SHARE_H_
#define HOROVOD_DATA_MAIL_SHARE_H_

#include <memory>
#include <vector>

#include "mail/parcel.h"
#include "wire/header.h"

namespace hvdata {

// The tensors themselves, which the engine only carries (ops/bundle.h).
using BundlePtr = std::shared_ptr<void>;

// On the reader: what goes out. For a trainer in the same process `bundle` is handed over as it is; for any other the
// blocks are sent.
struct Share {
  std::vector<wire::Component> components;
  std::vector<Block> blocks;
  BundlePtr bundle;
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_MAIL_SHARE_H_
