// SPDX-License-Identifier: Apache-2.0
// Processes call the socket over which memory is handed over, in any order, with any bytes and descriptors. Without the secret they
// get nothing. A caller with the secret is let in. No descriptor stays open. Then: descriptions of memory that a peer hands over.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "arena/arena.h"
#include "arena/reception.h"
#include "fuzz/fuzz.h"
#include "tests/arena_calls.h"

namespace hvdata {
namespace {

using Clock = std::chrono::steady_clock;
const std::string kSecret = "a secret";

// The lowest free descriptor. If it stays the same, no descriptor below it was left open.
int LowestFree() {
  const int fd = dup(2);
  close(fd);
  return fd;
}

void TryCallers(Decisions from) {
  Listener listener;
  Reception reception(&listener, kSecret);
  std::vector<int> callers;
  const auto next = [&](size_t size, size_t count, std::chrono::milliseconds patience) {
    std::string bytes(size, '\0');
    std::vector<int> fds;
    const Handover handover = reception.Next(&bytes[0], size, count, &fds, Clock::now() + patience);
    FUZZ_EXPECT(!handover.ok() || (bytes.substr(0, kSecret.size()) == kSecret && fds.size() == count));
    for (const int fd : fds) close(fd);
    return handover.ok();
  };
  while (!from.over()) {
    const size_t which = from.Choice(8);
    switch (from.Choice(4)) {
      case 0:
        if (callers.size() < 8) callers.push_back(Call(listener.name()));
        break;
      case 1:
        if (which >= callers.size()) break;
        close(callers[which]);
        callers.erase(callers.begin() + static_cast<std::ptrdiff_t>(which));
        break;
      case 2: {
        const size_t fds = from.Choice(9);
        const std::string bytes = (from.Choice(2) == 0 ? kSecret : "") + from.Text();
        if (which < callers.size()) Say(callers[which], bytes, fds);
        break;
      }
      default:
        next(1 + from.Choice(32), from.Choice(5), std::chrono::milliseconds(which % 2));
    }
  }
  callers.push_back(Call(listener.name()));
  FUZZ_EXPECT(callers.back() >= 0);
  Say(callers.back(), kSecret + "12345", 2);
  bool let_in = false;
  for (size_t i = 0; i < callers.size() && !let_in; ++i) let_in = next(kSecret.size() + 5, 2, std::chrono::seconds(10));
  FUZZ_EXPECT(let_in);
  reception.Close();
  for (const int fd : callers) close(fd);
}

// The memory is one page, and the peer describes it in other ways.
void TryMemory(Decisions from) {
  Segment segment;
  segment.peers = from.Number<uint32_t>();
  segment.arena = from.Number<uint64_t>();
  const uint64_t size = from.Choice(2) == 0 ? segment.Size() : from.Number<uint32_t>();
  const int fd = memfd_create("hvdata_fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (size < (1u << 30)) (void)!ftruncate(fd, static_cast<off_t>(size));
  if (from.Choice(4) > 0) fcntl(fd, F_ADD_SEALS, from.Choice(2) == 0 ? F_SEAL_SHRINK | F_SEAL_GROW : from.Choice(16));
  std::string why;
  const auto view = ArenaView::Attach(fd, segment, &why);
  FUZZ_EXPECT(view || !why.empty());
  if (!view) return;
  if (segment.peers > 0) FUZZ_EXPECT(view->Rings(segment.peers - 1)->down.Empty());
  while (!from.over()) {
    const char* data = nullptr;
    std::shared_ptr<const void> owner;
    const Arena::Location place{from.Number<uint32_t>(), from.Number<uint64_t>()};
    const uint64_t bytes = from.Number<uint64_t>();
    if (!view->Adopt(place, bytes, &data, &owner) || bytes == 0) continue;
    const volatile char first = data[0], last = data[bytes - 1];
    (void)first, (void)last;
  }
}

}  // namespace
}  // namespace hvdata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int free = hvdata::LowestFree();
  hvdata::Decisions from(data, size);
  if (from.Choice(4) > 0)
    hvdata::TryCallers(from);
  else
    hvdata::TryMemory(from);
  FUZZ_EXPECT(hvdata::LowestFree() == free);
  return 0;
}
