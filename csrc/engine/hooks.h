// SPDX-License-Identifier: Apache-2.0
// Functions of ops/ that the engine calls, because only ops/ knows TensorFlow.
#pragma once

#include "mail/post.h"
#include "mail/share.h"

namespace hvdata {

// Set by ops/ when the library is loaded.
struct Hooks {
  MakeDestination make_destination = nullptr;  // the owner is a BundlePtr
  void (*sweep)() = [] {};                     // frees unused tensors; called about every 100 ms
};
Hooks& TheHooks();

}  // namespace hvdata
