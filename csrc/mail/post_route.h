// SPDX-License-Identifier: Apache-2.0
// The way between this process and one other, as the post's own files see it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "mail/post.h"

namespace hvdata {

struct Post::Route {
  Route(int m, HostLink* l) : member(m), link(l) {}
  const int member;
  HostLink* const link;  // null: there is a porter between us
  bool numbers = true;   // whether what goes to the other has numbers, as it has more than one way
  int porter = -1;       // the other's, for what goes there; -1: none
  int porters = -1;      // ours, for what comes from there; -1: none
  Mutex sending{Mutex::kMail};
  uint64_t sent GUARDED_BY(sending) = 0;
  std::deque<std::string> rest GUARDED_BY(sending);  // to be passed on when there is room
  // Of the thread whose turn it is to deliver.
  uint64_t next = 1;                                             // the sequence number to deliver next
  std::map<uint64_t, std::pair<wire::Header, BundlePtr>> early;  // came before others that were sent before them
};

}  // namespace hvdata
