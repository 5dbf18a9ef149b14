// SPDX-License-Identifier: Apache-2.0
// The way between this process and one other process. Only the post's own files use it.
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
  HostLink* const link;  // null: there is a porter, but no link
  bool numbers = true;   // messages to the member have several ways, so they have sequence numbers
  int porter = -1;       // the member's porter, for messages to it; -1: none
  int porters = -1;      // our porter, for messages from it; -1: none
  Mutex sending{Mutex::kMail};
  uint64_t sent GUARDED_BY(sending) = 0;
  std::deque<std::string> rest GUARDED_BY(sending);  // messages that wait for room in the ring
  // Only the delivering thread uses these.
  uint64_t next = 1;                                             // the sequence number to deliver next
  std::map<uint64_t, std::pair<wire::Header, BundlePtr>> early;  // waiting for messages with lower numbers
};

}  // namespace hvdata
