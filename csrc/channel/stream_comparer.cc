// SPDX-License-Identifier: Apache-2.0
#include "channel/stream_comparer.h"

#include <algorithm>

#include "base/outcome.h"

namespace hvdata {

namespace {
// Readers that resume begin at different elements, but at most this many elements apart. The comparer ignores the hash
// of an element that is further ahead. No reader sends such a hash.
constexpr uint64_t kMostApart = 1 << 20;
}  // namespace

void StreamComparer::OnPulled(int reader, const wire::Header& header) {
  if (reader < 0) return;
  const auto& pulled = std::get<wire::Pulled>(header.message);
  MutexLock lock(&mu_);
  book_.Update(header, reader, pulled.progress == Progress::kDeparted,
               [&](const Key& key, Epoch* epoch) { Note(key, epoch, reader, pulled); });
}

void StreamComparer::Note(const Key& key, Epoch* epoch, int reader, const wire::Pulled& pulled) const {
  Reader& r = epoch->readers[static_cast<size_t>(reader)];
  if (pulled.progress == Progress::kClosed) {
    r.progress = Progress::kClosed;
  } else if (r.progress == Progress::kGoesOn) {
    r.divides_files = pulled.progress == Progress::kFiles;
    std::string difference = CompareHashes(epoch, reader, pulled);
    r.progress = pulled.progress;
    if (difference.empty()) difference = CompareEnds(*epoch);
    if (epoch->difference.empty()) epoch->difference = std::move(difference);
  }
  Forget(epoch);
  SendAlike(key, epoch);
}

// Compares the new hashes of `reader` with those of the other readers. Returns the first difference, or an empty text.
std::string StreamComparer::CompareHashes(Epoch* epoch, int reader, const wire::Pulled& pulled) const {
  Reader& r = epoch->readers[static_cast<size_t>(reader)];
  if (!std::exchange(r.begun, true)) r.pulled = pulled.first;
  if (pulled.hashes.empty() || r.pulled != pulled.first || !epoch->difference.empty()) return "";
  if (epoch->hashes.empty()) epoch->first = std::max(epoch->first, pulled.first);
  for (const uint64_t hash : pulled.hashes) {
    const uint64_t number = r.pulled++;
    if (number < epoch->first || number - epoch->first > epoch->hashes.size() + kMostApart) continue;
    const auto at = static_cast<size_t>(number - epoch->first);
    if (at >= epoch->hashes.size()) epoch->hashes.resize(at + 1);
    Hash& known = epoch->hashes[at];
    if (known.reader < 0) known = {hash, reader};
    if (known.hash != hash)
      return Differ(known.reader, reader, "element " + std::to_string(number) + " is not the same");
  }
  return "";
}

// Finds a reader that has ended although another reader has more elements. Also finds a reader that divides files while
// another reader divides elements. Returns the difference, or an empty text.
std::string StreamComparer::CompareEnds(const Epoch& epoch) const {
  for (size_t i = 0; i < epoch.readers.size(); ++i) {
    for (size_t k = 0; k < epoch.readers.size(); ++k) {
      const Reader &one = epoch.readers[i], &other = epoch.readers[k];
      if (!one.begun || !other.begun) continue;
      if (one.divides_files && !other.divides_files)
        return Differ(static_cast<int>(i), static_cast<int>(k), "the first divides files, and the second elements");
      if (one.progress == Progress::kEnded && other.pulled > one.pulled) {
        return Differ(static_cast<int>(i), static_cast<int>(k),
                      "element " + std::to_string(one.pulled) + " is missing on the first, whose data end before it");
      }
    }
  }
  return "";
}

std::string StreamComparer::Differ(int reader, int other, const std::string& what) const {
  return "shard=\"auto\" divides one pipeline between the readers, but its elements differ on " +
         world_->ReaderName(reader) + " and " + world_->ReaderName(other) + ": " + what +
         ". Rows would come twice or not at all. Yield the same elements in the same order on every reader: seed all "
         "that draws random numbers, also NumPy and Python. Or shard in the dataset function, which may take a "
         "tf.distribute.InputContext, and leave shard out";
}

// Forgets the hashes of elements that all readers have pulled. A reader with progress kClosed pulls no more elements,
// so it does not count.
void StreamComparer::Forget(Epoch* epoch) {
  uint64_t until = ~0ull;
  for (const Reader& r : epoch->readers) {
    if (r.progress != Progress::kClosed) until = std::min(until, r.pulled);
  }
  if (!epoch->difference.empty()) epoch->hashes.clear();
  for (; !epoch->hashes.empty() && epoch->first < until; ++epoch->first) epoch->hashes.pop_front();
}

// A reader that has not begun the epoch gets the result after its first message.
void StreamComparer::SendAlike(const Key& key, Epoch* epoch) const {
  const bool ended = std::none_of(epoch->readers.begin(), epoch->readers.end(),
                                  [](const Reader& r) { return r.progress == Progress::kGoesOn; });
  if (!ended && epoch->difference.empty()) return;
  const wire::Alike alike{{epoch->difference.empty() ? kOk : kDataLoss, epoch->difference}};
  for (size_t i = 0; i < epoch->readers.size(); ++i) {
    Reader& r = epoch->readers[i];
    if (r.progress == Progress::kClosed || !r.begun || std::exchange(r.answered, true)) continue;
    send_(world_->readers[i], MakeHeader(key.first, key.second, alike), nullptr);
  }
}

}  // namespace hvdata
