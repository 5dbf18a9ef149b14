// SPDX-License-Identifier: Apache-2.0
#include "arena/arena.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/fork.h"

namespace hvdata {
namespace {

// The arena reserves memory in pieces of this size, so it need not call the kernel for each batch.
constexpr uint64_t kChunk = 1 << 20;

// A refusal takes long. So the arena waits this long after a refusal before it asks the kernel again.
constexpr auto kAskAgain = std::chrono::seconds(1);

}  // namespace

std::shared_ptr<Arena> Arena::Create(uint64_t bytes, uint32_t peers, std::string* why) {
  const Segment segment{peers, 0, bytes / Segment::kPage * Segment::kPage};
  std::shared_ptr<Region> region = Region::Create("horovod_data", segment.Size(), why);
  if (!region) return nullptr;
  if (!region->Reserve(0, segment.ArenaAt())) {
    *why = "the system has no memory for " + std::to_string(segment.ArenaAt() >> 10) + " KiB of shared rings";
    return nullptr;
  }
  return std::shared_ptr<Arena>(new Arena(segment, std::move(region)));
}

Arena::Arena(const Segment& segment, std::shared_ptr<Region> region)
    : segment_(segment),
      region_(std::move(region)),
      data_(region_->data() + segment.ArenaAt()),
      slots_(segment.SlotsIn(region_->data())),
      heap_(segment.arena) {}

char* Arena::Allocate(uint64_t bytes, For purpose) {
  if (InForkedChild()) return nullptr;
  const uint64_t size = Heap::Rounded(std::max<uint64_t>(bytes, 1));
  MutexLock lock(&mu_);
  CollectLocked();
  const bool pipeline = purpose == For::kPipeline;
  const bool slot_left = !usage_.retired && (!free_slots_.empty() || offset_of_.size() < Slots::kCount);
  std::optional<uint64_t> offset;
  if (slot_left && (!pipeline || held_ + size <= segment_.arena / 2)) offset = heap_.Take(size);
  if (offset && !ReserveLocked(*offset + size)) {
    heap_.Give(*offset, size);
    offset.reset();
  }
  if (!offset) {
    ++usage_.refused;
    return nullptr;
  }
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(offset_of_.size()));
    offset_of_.push_back(0);
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  offset_of_[slot] = *offset;
  pieces_[*offset] = {size, slot, pipeline};
  usage_.taken += size;
  if (pipeline) held_ += size;
  slots_->Begin(slot);
  return data_ + *offset;
}

void Arena::Free(const char* memory) {
  if (InForkedChild()) return;
  MutexLock lock(&mu_);
  Piece& piece = FindLocked(memory)->second;
  if (std::exchange(piece.held, false)) held_ -= piece.size;
  slots_->Drop(piece.slot);
  try {
    if (usage_.retired) CollectLocked();
  } catch (const std::bad_alloc&) {  // a destructor may call Free(), which must not throw. A later call frees the slots
  }
}

std::optional<Arena::Location> Arena::Share(const char* memory) {
  if (!Contains(memory)) return std::nullopt;
  MutexLock lock(&mu_);
  Piece& piece = FindLocked(memory)->second;
  slots_->Use(piece.slot);
  return Location{piece.slot, static_cast<uint64_t>(memory - data_)};
}

Arena::Usage Arena::Read() {
  MutexLock lock(&mu_);
  CollectLocked();
  return usage_;
}

void Arena::Trim() {
  MutexLock lock(&mu_);
  CollectLocked();
  const uint64_t end = pieces_.empty() ? 0 : pieces_.rbegin()->first + pieces_.rbegin()->second.size;
  if (usage_.retired || end >= usage_.reserved) return;
  region_->Release(segment_.ArenaAt() + end, usage_.reserved - end);
  usage_.reserved = end;
}

void Arena::Retire() {
  MutexLock lock(&mu_);
  CollectLocked();
  if (std::exchange(usage_.retired, true)) return;
  for (const auto& [offset, size] : heap_.Free()) region_->Release(segment_.ArenaAt() + offset, size);
  usage_.reserved = usage_.taken;
}

Arena::Pieces::iterator Arena::FindLocked(const char* memory) {
  return std::prev(pieces_.upper_bound(static_cast<uint64_t>(memory - data_)));
}

// Frees the slots that trainers have given back.
void Arena::CollectLocked() {
  slots_->TakeReturned([&](uint32_t slot) {
    mu_.AssertHeld();
    if (slot >= offset_of_.size()) return;
    const auto piece = pieces_.find(offset_of_[slot]);
    if (piece == pieces_.end() || piece->second.slot != slot) return;
    const auto [offset, size] = std::pair(piece->first, piece->second.size);
    heap_.Give(offset, size);
    usage_.taken -= size;
    if (usage_.retired) {
      region_->Release(segment_.ArenaAt() + offset, size);
      usage_.reserved = usage_.taken;
    }
    pieces_.erase(piece);
    free_slots_.push_back(slot);
  });
}

// Makes the kernel reserve memory up to `end`. False: the kernel has no more memory.
bool Arena::ReserveLocked(uint64_t end) {
  if (end <= usage_.reserved) return true;
  if (usage_.short_of_memory && std::chrono::steady_clock::now() - asked_ < kAskAgain) return false;
  for (const uint64_t wanted : {std::min(segment_.arena, (end + kChunk - 1) / kChunk * kChunk), end}) {
    if (region_->Reserve(segment_.ArenaAt() + usage_.reserved, wanted - usage_.reserved)) {
      usage_.reserved = wanted;
      usage_.short_of_memory = false;
      return true;
    }
  }
  usage_.short_of_memory = true;
  asked_ = std::chrono::steady_clock::now();
  return false;
}

std::shared_ptr<ArenaView> ArenaView::Attach(Descriptor fd, const Segment& segment, std::string* why) {
  // Another process sent these sizes, so their sum may overflow.
  const bool wraps = segment.Size() < segment.arena;
  std::shared_ptr<Region> region =
      Region::Attach(std::move(fd), wraps ? ~0ull : segment.Size(), segment.ArenaAt(), why);
  if (!region) return nullptr;
  return std::shared_ptr<ArenaView>(new ArenaView(segment, std::move(region)));
}

bool ArenaView::Adopt(const Arena::Location& place, uint64_t bytes, const char** data,
                      std::shared_ptr<const void>* owner) {
  if (place.slot >= Slots::kCount || place.offset > segment_.arena || bytes > segment_.arena - place.offset)
    return false;
  *data = region_->data() + segment_.ArenaAt() + place.offset;
  owner->reset(static_cast<const void*>(*data), [view = shared_from_this(), slot = place.slot](const void*) {
    if (!InForkedChild()) view->slots_->Drop(slot);
  });
  return true;
}

}  // namespace hvdata
