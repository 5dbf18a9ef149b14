// SPDX-License-Identifier: Apache-2.0
#include "rows/gather.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "arena/copy.h"
#include "rows/receive_memory.h"
#include "rows/take_rows.h"

namespace hvdata {
namespace {

// Consecutive rows of one element, or of one component of it.
struct Run {
  const Columns* columns;
  int64_t begin, count;
};

std::vector<Run> RunsOf(const std::vector<RowRef>& rows) {
  std::vector<Run> runs;
  for (const RowRef& row : rows) {
    if (!runs.empty() && runs.back().columns == row.columns && runs.back().begin + runs.back().count == row.row)
      ++runs.back().count;
    else
      runs.push_back({row.columns, row.row, 1});
  }
  return runs;
}

// The number of components.
size_t WidthOf(const std::vector<Leaf>& leaves) {
  return leaves.empty() ? 0 : leaves.back().first + leaves.back().parts;
}

Outcome WrongAt(const Leaf& leaf, const std::vector<std::string>& names, const std::string& what) {
  return InvalidArgument("the rows of " +
                         (leaf.first < names.size() ? names[leaf.first] : "component " + std::to_string(leaf.first)) +
                         " can't be joined: " + what);
}

// Checks a leaf of an element, which another process may have sent. Returns what is wrong with its types and shapes,
// or an empty text. `like`: the leaf of another element, whose types it must have.
std::string WrongColumns(const Leaf& leaf, const Column* parts, const Column* like) {
  for (size_t part = 0; part < leaf.parts; ++part) {
    const Column& its = parts[part];
    const bool values = part == (leaf.kind == Leaf::kSparse ? 1 : 0);
    const bool splits = leaf.kind == Leaf::kRagged && !values;
    if (its.dtype != like[part].dtype)
      return "they have the types " + DtypeName(like[part].dtype) + " and " + DtypeName(its.dtype);
    const bool fits = values ? ItemBytes(its.dtype) > 0 : its.dtype == kInt64 || (splits && its.dtype == kInt32);
    if (!fits) return "component " + std::to_string(leaf.first + part) + " has the type " + DtypeName(its.dtype);
    const bool vector = splits || (leaf.kind == Leaf::kSparse && part > 0);
    if (vector && its.dims.size() != 1)
      return "component " + std::to_string(leaf.first + part) + " has the shape " + ShapeText(its.dims);
  }
  if (leaf.kind == Leaf::kSparse && (parts[0].dims.size() != 2 || parts[0].dims[0] != parts[1].dims[0])) {
    return "they have " + ShapeText(parts[1].dims) + " values at places of the shape " + ShapeText(parts[0].dims);
  }
  return "";
}

// The part of a row's shape that must be the same for all rows.
std::vector<int64_t> InnerShape(const Leaf& leaf, const Column* parts) {
  if (leaf.kind == Leaf::kSparse) return {parts[2].as<int64_t>() + 1, parts[2].as<int64_t>() + parts[2].count()};
  return {parts[0].dims.begin() + 1, parts[0].dims.end()};
}

bool SameInnerShape(const Leaf& leaf, const Column* a, const Column* b) {
  if (leaf.kind != Leaf::kSparse)
    return std::equal(a[0].dims.begin() + 1, a[0].dims.end(), b[0].dims.begin() + 1, b[0].dims.end());
  const auto *sizes = a[2].as<int64_t>(), *others = b[2].as<int64_t>();
  return std::equal(sizes + 1, sizes + a[2].count(), others + 1, others + b[2].count());
}

// Copies of fewer bytes can't bypass the caches well.
constexpr size_t kLeastPastCaches = 4 << 10;

// Copies the runs' bytes one after the other. A row has `bytes` bytes.
void CopyRuns(size_t part, const std::vector<Run>& runs, size_t bytes, const Column& to) {
  std::vector<size_t> begins;  // by run, in `to`
  size_t total = 0;
  for (const Run& run : runs) {
    begins.push_back(total);
    total += static_cast<size_t>(run.count) * bytes;
  }
  begins.push_back(total);
  CopyInParts(total, [&](size_t at, size_t end) {
    size_t i = static_cast<size_t>(std::upper_bound(begins.begin(), begins.end(), at) - begins.begin()) - 1;
    for (; at < end; ++i) {
      const char* const from = (*runs[i].columns)[part].memory.data + static_cast<size_t>(runs[i].begin) * bytes;
      const size_t count = std::min(begins[i + 1], end) - at;
      char* const place = to.make<char>() + at;
      if (count < kLeastPastCaches)
        std::memcpy(place, from + (at - begins[i]), count);
      else
        CopyPastCaches(place, from + (at - begins[i]), count);
      at += count;
    }
  });
}

class Gatherer {
 public:
  // `arena`: as for New(). nullopt: columns get memory as received ones do (rows/receive_memory.h).
  Gatherer(const Columns& model, std::vector<Run> runs, std::optional<ArenaPtr> arena)
      : model_(runs.empty() ? model : *runs[0].columns), runs_(std::move(runs)), arena_(std::move(arena)) {
    for (const Run& run : runs_) rows_ += run.count;
  }

  // Appends the columns of a leaf. Returns what is wrong with it, or an empty text.
  std::string Add(const Leaf& leaf, Columns* gathered) const {
    const Column* like = &model_[leaf.first];
    if (std::string wrong = WrongLeaf(leaf, model_, like); !wrong.empty()) return wrong;
    const Columns* checked = &model_;
    for (const Run& run : runs_) {
      const Column* parts = &(*run.columns)[leaf.first];
      if (run.columns != checked) {
        if (std::string wrong = WrongLeaf(leaf, *run.columns, like); !wrong.empty()) return wrong;
        if (!SameInnerShape(leaf, parts, like))
          return "they have the shapes " + ShapeText(InnerShape(leaf, like)) + " and " +
                 ShapeText(InnerShape(leaf, parts)) +
                 ". Give all rows one shape, make it a ragged tensor, or use batch=\"per_rank\"";
        checked = run.columns;
      }
      const int64_t rows = *RowsOf(leaf, run.columns->data());
      if (run.begin < 0 || run.begin > rows || run.count > rows - run.begin)
        return "there are " + std::to_string(rows) + " rows, but no row " + std::to_string(run.begin + run.count - 1);
    }
    if (leaf.kind == Leaf::kSparse) return AddSparse(leaf, like, gathered);
    return leaf.kind == Leaf::kRagged ? AddRagged(leaf, like, gathered)
                                      : AddItems(leaf.first, runs_, rows_, like[0], gathered);
  }

 private:
  static std::string WrongLeaf(const Leaf& leaf, const Columns& columns, const Column* like) {
    if (std::string wrong = WrongColumns(leaf, &columns[leaf.first], like); !wrong.empty()) return wrong;
    if (!RowsOf(leaf, columns.data())) return "they have no axis 0";
    return "";
  }

  // Makes a column for `rows` rows of the same shape as those of `like`. False: no tensor can have its shape.
  bool Make(const Column& like, int64_t rows, Column* column) const {
    auto dims = like.dims;
    dims[0] = rows;
    const std::optional<uint64_t> bytes = BytesOfItems(like.dtype, dims);
    if (!bytes) return false;
    if (arena_ || like.texts()) {
      *column = New(like.dtype, std::move(dims), arena_.value_or(nullptr));
    } else {
      *column = {like.dtype, std::move(dims), NewReceiveBlock(*bytes)};
      column->ours = true;
    }
    return true;
  }

  // Appends a column of these rows of component `part`. There are `rows` of them.
  std::string AddItems(size_t part, const std::vector<Run>& runs, int64_t rows, const Column& like,
                       Columns* gathered) const {
    Column column;
    if (!Make(like, rows, &column)) return kTooMany;
    const int64_t items = rows > 0 ? column.count() / rows : 0;
    if (column.memory.size >= kPastCaches) {
      CopyRuns(part, runs, static_cast<size_t>(items) * ItemBytes(column.dtype), column);
    } else {
      int64_t place = 0;
      for (const Run& run : runs) {
        CopyItems((*run.columns)[part], run.begin * items, run.count * items, column, place);
        place += run.count * items;
      }
    }
    if (column.texts()) KeepTexts(part, runs, &column);
    gathered->push_back(std::move(column));
    return "";
  }

  // As Keep(), for the texts of all elements.
  static void KeepTexts(size_t part, const std::vector<Run>& runs, Column* column) {
    using Owners = std::vector<std::shared_ptr<const void>>;
    std::vector<const Columns*> elements;
    elements.reserve(runs.size());
    for (const Run& run : runs) elements.push_back(run.columns);
    std::sort(elements.begin(), elements.end());
    elements.erase(std::unique(elements.begin(), elements.end()), elements.end());
    auto owners = std::make_shared<Owners>(1, std::move(column->memory.owner));
    for (const Columns* element : elements) owners->push_back((*element)[part].memory.owner);
    column->memory.owner = std::move(owners);
  }

  std::string AddRagged(const Leaf& leaf, const Column* like, Columns* gathered) const {
    const size_t values = gathered->size();
    gathered->emplace_back();
    std::vector<Run> runs = runs_;
    int64_t rows = rows_;
    for (size_t level = leaf.first + 1; level < leaf.first + leaf.parts; ++level) {
      Column splits;
      if (!Make(like[level - leaf.first], rows + 1, &splits)) return kTooMany;
      if (rows == 0) std::memset(splits.make<char>(), 0, splits.memory.size);
      int64_t place = 0, total = 0;
      for (Run& run : runs) {
        const Columns& its = *run.columns;
        const int64_t below =
            level + 1 < leaf.first + leaf.parts ? its[level + 1].count() - 1 : its[leaf.first].dims[0];
        plan::Rows at{run.begin, run.count, 0};
        if (!TakeSplits(its[level], below, 0, &at, splits, place)) return kWrongSplits;
        place += run.count;
        run.begin = at.begin, run.count = at.count;
        const bool sums = !__builtin_add_overflow(total, run.count, &total);
        if (!sums || (splits.dtype == kInt32 && total > std::numeric_limits<int32_t>::max()))
          return "they have more values than their row splits can count";
      }
      rows = total;
      gathered->push_back(std::move(splits));
    }
    Columns made;
    std::string wrong = AddItems(leaf.first, runs, rows, like[0], &made);
    if (wrong.empty()) (*gathered)[values] = std::move(made[0]);
    return wrong;
  }

  std::string AddSparse(const Leaf& leaf, const Column* like, Columns* gathered) const {
    std::vector<Run> entries;
    int64_t count = 0;
    for (const Run& run : runs_) {
      const Column& indices = (*run.columns)[leaf.first];
      const int64_t begin = EntryOf(indices, run.begin), end = EntryOf(indices, run.begin + run.count);
      if (end < begin) return kUnsorted;
      entries.push_back({run.columns, begin, end - begin});
      count += end - begin;
    }
    if (std::string wrong = AddItems(leaf.first, entries, count, like[0], gathered); !wrong.empty()) return wrong;
    auto* row = gathered->back().make<int64_t>();
    int64_t place = 0;  // of the run's first row
    for (size_t i = 0; i < runs_.size(); place += runs_[i++].count) {
      for (int64_t k = 0; k < entries[i].count; ++k, row += like[0].dims[1]) {
        if (*row < runs_[i].begin || *row - runs_[i].begin >= runs_[i].count) return kUnsorted;
        *row += place - runs_[i].begin;
      }
    }
    if (std::string wrong = AddItems(leaf.first + 1, entries, count, like[1], gathered); !wrong.empty()) return wrong;
    Column shape = Copy(like[2]);
    *shape.make<int64_t>() = rows_;
    gathered->push_back(std::move(shape));
    return "";
  }

  static constexpr const char* kTooMany = "a tensor can't have so many";
  static constexpr const char* kUnsorted = "the entries of a sparse tensor are not sorted by row";

  const Columns& model_;
  const std::vector<Run> runs_;
  const std::optional<ArenaPtr> arena_;
  int64_t rows_ = 0;
};

Outcome Gather(const std::vector<Leaf>& leaves, const Columns& model, std::vector<Run> runs,
               std::optional<ArenaPtr> arena, const std::vector<std::string>& names, Columns* gathered) {
  for (const Run& run : runs) {
    if (run.columns->size() < WidthOf(leaves)) return {kInternal, "a row has too few components"};
  }
  const Gatherer gatherer(model, std::move(runs), std::move(arena));
  gathered->clear();
  for (const Leaf& leaf : leaves) {
    const std::string wrong = gatherer.Add(leaf, gathered);
    if (!wrong.empty()) return WrongAt(leaf, names, wrong);
  }
  return {};
}

// A piece's head, after its checks.
struct Head {
  int64_t all = 0, data = 0, count = 0;
  const int64_t* places = nullptr;
};

std::string ReadHead(const Columns& piece, Head* head) {
  if (piece.empty()) return "it has no columns";
  const Column& column = piece.back();
  if (column.dtype != kInt64 || column.dims.size() != 1 || column.count() < 2) return "it has no head";
  const auto* numbers = column.as<int64_t>();
  *head = {numbers[0], numbers[1], column.count() - 2, numbers + 2};
  if (head->data < 0 || head->data > head->all) {
    return "it has a share of " + std::to_string(head->all) + " rows, of which " + std::to_string(head->data) +
           " are data";
  }
  return "";
}

// Checks that a piece has as many rows as places.
Outcome CheckRows(const std::vector<Leaf>& leaves, const Columns& piece, const Head& head,
                  const std::vector<std::string>& names) {
  if (head.all == 1) return {};  // the row may be a whole element, which has any number of rows
  for (const Leaf& leaf : leaves) {
    const Column* parts = &piece[leaf.first];
    if (const std::string wrong = WrongColumns(leaf, parts, parts); !wrong.empty()) return WrongAt(leaf, names, wrong);
    if (RowsOf(leaf, piece.data()) != head.count)
      return WrongAt(leaf, names, "a piece has " + std::to_string(head.count) + " places, but another number of rows");
  }
  return {};
}

}  // namespace

Outcome SortEntries(const std::vector<Leaf>& leaves, const std::vector<std::string>& names, Columns* element) {
  for (const Leaf& leaf : leaves) {
    if (leaf.kind != Leaf::kSparse || !RowsOf(leaf, element->data())) continue;
    const SparseRows rows(&(*element)[leaf.first], nullptr);
    if (const Outcome outcome = rows.Check(); !outcome.ok()) return WrongAt(leaf, names, outcome.message);
    (*element)[leaf.first] = rows.indices();
    (*element)[leaf.first + 1] = rows.values();
  }
  return {};
}

Outcome GatherRows(const std::vector<Leaf>& leaves, const std::vector<RowRef>& rows, const Columns& model,
                   const ArenaPtr& arena, Columns* gathered, const std::vector<std::string>& names) {
  return Gather(leaves, model, RunsOf(rows), arena ? std::optional(arena) : std::nullopt, names, gathered);
}

Column PieceHead(int64_t all, int64_t data, const std::vector<int64_t>& places) {
  Column head = New(kInt64, {static_cast<int64_t>(places.size()) + 2});
  auto* numbers = head.make<int64_t>();
  numbers[0] = all, numbers[1] = data;
  std::copy(places.begin(), places.end(), numbers + 2);
  return head;
}

Outcome JoinPieces(const std::vector<Leaf>& leaves, const std::vector<const Columns*>& pieces, Columns* share,
                   uint64_t* data_rows, const std::vector<std::string>& names) {
  const auto wrong_piece = [](size_t piece, const std::string& what) {
    return Outcome(kInternal, "piece " + std::to_string(piece) + " of a share is wrong: " + what);
  };
  const size_t width = WidthOf(leaves);
  const Columns* model = nullptr;
  int64_t all = 0, found = 0;
  std::vector<Head> heads(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    Head& head = heads[i];
    if (const std::string wrong = ReadHead(*pieces[i], &head); !wrong.empty()) return wrong_piece(i, wrong);
    if (head.all != heads[0].all || head.data != heads[0].data)
      return wrong_piece(i, "other pieces are of another share");
    const size_t components = pieces[i]->size() - 1;
    if (components != width && (components != 0 || head.count > 0))
      return wrong_piece(i, "it has " + std::to_string(components) + " components");
    if (components > 0) HVDATA_RETURN_IF_ERROR(CheckRows(leaves, *pieces[i], head, names));
    if (components > 0 && (model == nullptr || head.count > 0)) model = pieces[i];
    found += head.count;
  }
  if (pieces.empty() || model == nullptr) return {kInternal, "a share came without its components"};
  all = heads[0].all;
  if (found != all) {
    return {kInternal, "a share of " + std::to_string(all) + " rows came with " + std::to_string(found) + " rows"};
  }
  std::vector<RowRef> rows(static_cast<size_t>(found));
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (int64_t k = 0; k < heads[i].count; ++k) {
      const int64_t place = heads[i].places[k];
      if (place < 0 || place >= all)
        return wrong_piece(i, "it has row " + std::to_string(place) + " of a smaller share");
      RowRef& row = rows[static_cast<size_t>(place)];
      if (row.columns != nullptr) return wrong_piece(i, "row " + std::to_string(place) + " came twice");
      row = {pieces[i], k};
    }
  }
  *data_rows = static_cast<uint64_t>(heads[0].data);
  std::vector<Run> runs = RunsOf(rows);
  if (runs.size() > 1) return Gather(leaves, *model, std::move(runs), std::nullopt, names, share);
  share->assign(model->begin(), model->end() - 1);
  return {};
}

}  // namespace hvdata
