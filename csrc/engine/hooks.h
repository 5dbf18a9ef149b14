// SPDX-License-Identifier: Apache-2.0
// What the engine calls and does not know: only ops/ knows TensorFlow.
#pragma once

#include "mail/post.h"
#include "mail/share.h"

namespace hvdata {

// Given by the ops while the library is loaded.
struct Hooks {
  MakeLanding make_landing = nullptr;  // the owner of what it makes is a BundlePtr
  void (*sweep)() = [] {};             // frees what nobody uses any more; called about every 100 ms
};
Hooks& TheHooks();

}  // namespace hvdata
