// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "rows/gather.h"
#include "rows/take_rows.h"
#include "tests/column_samples.h"

namespace hvdata {
namespace {

// Numbers, texts, no bytes, two levels of rows, texts in rows, a sparse tensor, sparse texts.
const std::vector<Leaf>& AllLeaves() {
  static const std::vector<Leaf> leaves{{Leaf::kDense, 0, 1},  {Leaf::kDense, 1, 1},  {Leaf::kDense, 2, 1},
                                        {Leaf::kRagged, 3, 3}, {Leaf::kRagged, 6, 2}, {Leaf::kSparse, 8, 3},
                                        {Leaf::kSparse, 11, 3}};
  return leaves;
}

class Maker {
 public:
  explicit Maker(uint32_t seed) : random_(seed) {}

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  Columns Element(int64_t rows) {
    Columns element{Numbers({rows, 3}), SomeTexts(rows), New(kFloat, {rows, 0, 2})};
    const Column outer = Splits<int64_t>(rows, 3), inner = Splits<int32_t>(Listed<int64_t>(outer).back(), 2);
    element.insert(element.end(), {Numbers({Listed<int32_t>(inner).back(), 2}), outer, inner});
    const Column splits = Splits<int32_t>(rows, 4);
    element.insert(element.end(), {SomeTexts(Listed<int32_t>(splits).back()), splits});
    for (const bool texts : {false, true}) {
      std::vector<int64_t> indices;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t k = Below(3); k > 0; --k) indices.insert(indices.end(), {row, Below(9)});
      }
      Column pairs = Vector<int64_t>(indices);
      pairs.dims = {static_cast<int64_t>(indices.size() / 2), 2};
      const int64_t entries = pairs.dims[0];
      element.insert(element.end(),
                     {pairs, texts ? SomeTexts(entries) : Numbers({entries}), Vector<int64_t>({rows, 9})});
    }
    return element;
  }

 private:
  Column Numbers(const std::vector<int64_t>& dims) {
    Column numbers = New(kInt32, dims);
    for (int64_t i = 0; i < numbers.count(); ++i) numbers.make<int32_t>()[i] = static_cast<int32_t>(random_());
    return numbers;
  }

  Column SomeTexts(int64_t count) {
    auto all = std::make_shared<std::vector<std::string>>();
    for (int64_t i = 0; i < count; ++i) all->push_back(std::string(random_() % 40, static_cast<char>('a' + Below(26))));
    return Texts({count}, {all->begin(), all->end()}, all);
  }

  template <typename T>
  Column Splits(int64_t rows, int64_t most) {
    std::vector<T> ends{0};
    for (int64_t row = 0; row < rows; ++row) ends.push_back(ends.back() + static_cast<T>(Below(most + 1)));
    return Vector<T>(ends);
  }

  std::mt19937 random_;
};

void ExpectSame(const Columns& found, const Columns& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "component " << i);
    ASSERT_EQ(found[i].dtype, wanted[i].dtype);
    ASSERT_EQ(found[i].dims, wanted[i].dims);
    ASSERT_EQ(found[i].memory.size, wanted[i].memory.size);
    if (found[i].texts()) {
      ASSERT_EQ(Listed<std::string_view>(found[i]), Listed<std::string_view>(wanted[i]));
    } else if (found[i].memory.size > 0) {
      ASSERT_EQ(std::memcmp(found[i].memory.data, wanted[i].memory.data, found[i].memory.size), 0);
    }
  }
}

// Appends the rows of a leaf in `more` to those in `share`.
Outcome AppendRows(const Leaf& leaf, const Columns& more, Columns* share) {
  const auto join = [&](size_t part) { return JoinRows({(*share)[part], more[part]}, &(*share)[part]); };
  const auto shift = [&](size_t part, int64_t from, int64_t stride, int64_t by) {
    const Column& its = (*share)[part];
    for (int64_t i = from; i < its.count(); i += stride) {
      if (its.dtype == kInt32)
        its.make<int32_t>()[i] += static_cast<int32_t>(by);
      else
        its.make<int64_t>()[i] += by;
    }
  };
  const int64_t rows = *RowsOf(leaf, share->data());
  if (leaf.kind == Leaf::kSparse) {  // indices, values, dense shape
    const int64_t entries = (*share)[leaf.first].count(), rank = (*share)[leaf.first].dims[1];
    const int64_t added = *RowsOf(leaf, more.data());
    HVDATA_RETURN_IF_ERROR(join(leaf.first));
    shift(leaf.first, entries, rank, rows);
    (*share)[leaf.first + 2] = Copy((*share)[leaf.first + 2]);
    *(*share)[leaf.first + 2].make<int64_t>() = rows + added;
    return join(leaf.first + 1);
  }
  // Joins the outermost splits first, because `below` must count what the splits divide before it is joined. The values
  // are the first part, and are joined last.
  for (size_t part = leaf.first + 1; part < leaf.first + leaf.parts; ++part) {
    const int64_t before = (*share)[part].count();
    const int64_t below =
        part + 1 < leaf.first + leaf.parts ? (*share)[part + 1].count() - 1 : (*share)[leaf.first].dims[0];
    HVDATA_RETURN_IF_ERROR(JoinRows({(*share)[part], View(more[part], 1, more[part].count() - 1)}, &(*share)[part]));
    shift(part, before, 1, below);
  }
  return join(leaf.first);
}

// Slices row after row, and concatenates them.
Columns OneByOne(const std::vector<Leaf>& leaves, const std::vector<RowRef>& rows, const Columns& model) {
  const auto slice = [&leaves](const Columns& element, const plan::Rows& taken) {
    Columns share;
    for (const Leaf& leaf : leaves) {
      const Column* parts = &element[leaf.first];
      const std::vector<int64_t> lengths(leaf.parts, -1);
      if (leaf.kind == Leaf::kSparse)
        SparseRows(parts, nullptr).Take(taken, &share);
      else
        EXPECT_TRUE(TakeRaggedRows(parts, leaf.parts, lengths.data(), taken, nullptr, &share).ok());
    }
    return share;
  };
  Columns all = slice(model, {0, 0, 0});
  for (const RowRef& row : rows) {
    const Columns one = slice(*row.columns, {row.row, 1, 0});
    for (const Leaf& leaf : leaves) EXPECT_TRUE(AppendRows(leaf, one, &all).ok());
  }
  return all;
}

std::vector<RowRef> RowsOfAll(const std::vector<Columns>& elements, int64_t rows) {
  std::vector<RowRef> all;
  for (const Columns& element : elements) {
    for (int64_t row = 0; row < rows; ++row) all.push_back({&element, row});
  }
  return all;
}

Columns Gathered(const std::vector<Leaf>& leaves, const std::vector<RowRef>& rows, const Columns& model) {
  Columns gathered;
  const Outcome outcome = GatherRows(leaves, rows, model, nullptr, &gathered);
  EXPECT_TRUE(outcome.ok()) << outcome.message;
  return gathered;
}

TEST(GatherRows, AreAsSlicedAndConcatenated) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Maker maker(seed);
    std::vector<Columns> elements;
    std::vector<int64_t> sizes;
    for (int64_t count = 1 + maker.Below(5); count > 0; --count) {
      sizes.push_back(1 + maker.Below(8));
      elements.push_back(maker.Element(sizes.back()));
    }
    std::vector<RowRef> rows;
    while (maker.Below(12) > 0) {  // runs of consecutive rows, some of them again
      const auto element = static_cast<size_t>(maker.Below(static_cast<int64_t>(elements.size())));
      const int64_t begin = maker.Below(sizes[element]), end = begin + 1 + maker.Below(sizes[element] - begin);
      for (int64_t row = begin; row < end; ++row) rows.push_back({&elements[element], row});
    }
    ASSERT_NO_FATAL_FAILURE(
        ExpectSame(Gathered(AllLeaves(), rows, elements[0]), OneByOne(AllLeaves(), rows, elements[0])));
  }
}

TEST(GatherRows, WithoutRowsAreAsTheModel) {
  const Columns model = Maker(1).Element(4);
  const Columns gathered = Gathered(AllLeaves(), {}, model);
  ASSERT_NO_FATAL_FAILURE(ExpectSame(gathered, OneByOne(AllLeaves(), {}, model)));
  EXPECT_EQ(gathered[0].dims, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(Listed<int64_t>(gathered[10]), (std::vector<int64_t>{0, 9}));
}

TEST(GatherRows, KeepTheirTexts) {
  const auto make = [] {
    Maker maker(2);
    return std::vector<Columns>{maker.Element(3), maker.Element(3)};
  };
  Columns gathered;
  {
    const auto gone = make();
    gathered = Gathered(AllLeaves(), RowsOfAll(gone, 3), gone[0]);
  }
  const auto same = make();
  ExpectSame(gathered, OneByOne(AllLeaves(), RowsOfAll(same, 3), same[0]));
}

TEST(GatherRows, LieInTheArena) {
  std::string why;
  const ArenaPtr arena = Arena::Create(8 << 20, 1, &why);
  ASSERT_TRUE(arena) << why;
  const std::vector<Leaf> leaves{{Leaf::kDense, 0, 1}, {Leaf::kDense, 1, 1}};
  std::vector<Columns> elements;
  for (int i = 0; i < 3; ++i)
    elements.push_back({Zeros(kFloat, {4, 2000}), Vector<std::string_view>({"a", "b", "c", "d"})});
  Columns gathered;
  ASSERT_TRUE(GatherRows(leaves, RowsOfAll(elements, 4), elements[0], arena, &gathered).ok());
  EXPECT_TRUE(arena->Contains(gathered[0].memory.data));
  EXPECT_FALSE(arena->Contains(gathered[1].memory.data)) << "texts";
}

// More than other threads help with, at odd places.
TEST(GatherRows, OfManyBytes) {
  const std::vector<Leaf> leaves{{Leaf::kDense, 0, 1}};
  constexpr int64_t kItems = 70001, kRows = 50;
  std::vector<Columns> elements;
  for (int e = 0; e < 3; ++e) {
    Column column = New(kFloat, {kRows, kItems});
    for (int64_t i = 0; i < column.count(); ++i) column.make<float>()[i] = static_cast<float>(i + e);
    elements.push_back({column});
  }
  std::vector<RowRef> rows;
  std::vector<int64_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin() + 10, order.end(), std::mt19937(5));
  for (const int64_t row : order) rows.push_back({&elements[static_cast<size_t>(row < 10 ? 0 : row % 3)], row});
  const Columns gathered = Gathered(leaves, rows, elements[0]);
  ASSERT_NO_FATAL_FAILURE(ExpectSame(gathered, OneByOne(leaves, rows, elements[0])));
}

class GatherErrors : public testing::Test {
 protected:
  // The error of gathering the first row of each element.
  static std::string WhyNot(const Leaf& leaf, const std::vector<Columns>& elements) {
    Columns gathered;
    const Outcome outcome = GatherRows({leaf}, RowsOfAll(elements, 1), elements[0], nullptr, &gathered, {"['x']"});
    EXPECT_EQ(outcome.code, kInvalidArgument);
    return outcome.message;
  }
  static Columns SparseOf(const std::vector<int64_t>& rows, int64_t count, std::vector<int64_t> shape) {
    return {Places(rows), Zeros(kFloat, {count}), Vector<int64_t>(shape)};
  }
  const std::string cure_ = ". Give all rows one shape, make it a ragged tensor, or use batch=\"per_rank\"";
  const std::string front_ = "the rows of ['x'] can't be joined: ";
  const Leaf dense_{Leaf::kDense, 0, 1}, ragged_{Leaf::kRagged, 0, 2}, sparse_{Leaf::kSparse, 0, 3};
};

TEST_F(GatherErrors, ShapesAndTypes) {
  const Columns two{Zeros(kFloat, {1, 2})}, three{Zeros(kFloat, {1, 3})}, integers{Zeros(kInt32, {1, 2})};
  EXPECT_EQ(WhyNot(dense_, {two, three}), front_ + "they have the shapes [2] and [3]" + cure_);
  EXPECT_EQ(WhyNot(dense_, {two, integers}), front_ + "they have the types float and int32");
  EXPECT_EQ(WhyNot(dense_, {{Zeros(kFloat, {})}}), front_ + "they have no axis 0");
  EXPECT_EQ(WhyNot(dense_, {{Zeros(kFloat, {0, 2})}}), front_ + "there are 0 rows, but no row 0");
  const auto ragged = [](const Column& values) { return Columns{values, Vector<int64_t>({0, 1})}; };
  EXPECT_EQ(WhyNot(ragged_, {ragged(two[0]), ragged(three[0])}), front_ + "they have the shapes [2] and [3]" + cure_);
  const Columns flat = SparseOf({0}, 1, {5});
  Columns deep = SparseOf({0, 1}, 1, {5, 7}), deeper = SparseOf({0, 1}, 1, {5, 8});
  deep[0].dims = deeper[0].dims = {1, 2};
  EXPECT_EQ(WhyNot(sparse_, {deep, deeper}), front_ + "they have the shapes [7] and [8]" + cure_);
  EXPECT_EQ(WhyNot(sparse_, {flat, deep}), front_ + "they have the shapes [] and [7]" + cure_);
}

TEST_F(GatherErrors, OfRaggedRows) {
  const Column values = Zeros(kFloat, {3});
  for (const std::vector<int64_t>& splits : {std::vector<int64_t>{0, 4}, {-1, 2}, {2, 1}, {INT64_MIN, INT64_MAX}})
    EXPECT_EQ(WhyNot(ragged_, {{values, Vector<int64_t>(splits)}}), front_ + kWrongSplits);
  EXPECT_EQ(WhyNot(ragged_, {{values, Vector<int64_t>({})}}), front_ + "they have no axis 0");
  EXPECT_EQ(WhyNot(ragged_, {{values, Zeros(10 /* bool */, {2})}}), front_ + "component 1 has the type bool");
  EXPECT_EQ(WhyNot(ragged_, {{values, Zeros(kInt64, {1, 2})}}), front_ + "component 1 has the shape [1,2]");
  // Values without bytes may be more than splits can count.
  const Columns one{values}, many{Zeros(kFloat, {int64_t{1} << 31, 0}), Vector<int32_t>({0, INT32_MAX})};
  EXPECT_EQ(WhyNot(ragged_, {many, many}), front_ + "they have more values than their row splits can count");
  const Columns more{Zeros(kFloat, {INT64_MAX, 0}), Vector<int64_t>({0, INT64_MAX})};
  EXPECT_EQ(WhyNot(ragged_, {more, more}), front_ + "they have more values than their row splits can count");
  Columns gathered;
  EXPECT_EQ(GatherRows({ragged_}, {{&one, 0}}, one, nullptr, &gathered).code, kInternal) << "too few components";
}

TEST_F(GatherErrors, OfSparseRows) {
  EXPECT_EQ(WhyNot(sparse_, {SparseOf({0, 1}, 3, {5})}), front_ + "they have [3] values at places of the shape [2,1]");
  EXPECT_EQ(WhyNot(sparse_, {SparseOf({}, 0, {0})}), front_ + "there are 0 rows, but no row 0");
  EXPECT_EQ(WhyNot(sparse_, {SparseOf({}, 0, {-3})}), front_ + "there are -3 rows, but no row 0");
  EXPECT_EQ(WhyNot(sparse_, {SparseOf({-3, -2, -9, 1, 0}, 5, {5})}).substr(0, front_.size()), front_);
  Columns wrong = SparseOf({0}, 1, {5});
  wrong[2] = Zeros(kInt32, {1});
  EXPECT_EQ(WhyNot(sparse_, {wrong}), front_ + "component 2 has the type int32");
}

TEST(SortEntries, SortsWhatIsNot) {
  const std::vector<Leaf> leaves{{Leaf::kDense, 0, 1}, {Leaf::kSparse, 1, 3}};
  Columns element{Zeros(kFloat, {4}), Places({3, 1, 0, 2}), Vector<int32_t>({30, 10, 0, 20}), Vector<int64_t>({4})};
  ASSERT_TRUE(SortEntries(leaves, {}, &element).ok());
  EXPECT_EQ(Listed<int64_t>(element[1]), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(Listed<int32_t>(element[2]), (std::vector<int32_t>{0, 10, 20, 30}));
  const char* const data = element[1].memory.data;
  ASSERT_TRUE(SortEntries(leaves, {}, &element).ok());
  EXPECT_EQ(element[1].memory.data, data) << "sorted already";
  element[3] = Vector<int64_t>({3});
  EXPECT_EQ(SortEntries(leaves, {"['d']", "['s']"}, &element).message,
            "the rows of ['s'] can't be joined: it is a sparse tensor with a value in row 3, of 3 rows");
}

// Deals the rows of an element to `count` keepers. `part_of`: by row.
std::vector<Columns> Pieces(const Columns& element, const std::vector<size_t>& part_of, size_t count, int64_t data) {
  std::vector<Columns> pieces(count);
  for (size_t part = 0; part < count; ++part) {
    std::vector<RowRef> rows;
    std::vector<int64_t> places;
    for (size_t row = 0; row < part_of.size(); ++row) {
      if (part_of[row] != part) continue;
      rows.push_back({&element, static_cast<int64_t>(row)});
      places.push_back(static_cast<int64_t>(row));
    }
    if (!rows.empty() || part == 0) {
      EXPECT_TRUE(GatherRows(AllLeaves(), rows, element, nullptr, &pieces[part]).ok());
    }
    pieces[part].push_back(PieceHead(static_cast<int64_t>(part_of.size()), data, places));
  }
  return pieces;
}

struct Joined {
  std::string why;  // empty: it was made
  Columns share;
  uint64_t data = 0;
};

Joined Join(const std::vector<Leaf>& leaves, const std::vector<Columns>& pieces) {
  std::vector<const Columns*> pointers;
  for (const Columns& piece : pieces) pointers.push_back(&piece);
  Joined joined;
  joined.why = JoinPieces(leaves, pointers, &joined.share, &joined.data).message;
  return joined;
}

TEST(JoinPieces, MakesTheShare) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Maker maker(seed);
    const int64_t rows = maker.Below(9), keepers = 1 + maker.Below(4);
    const Columns element = maker.Element(rows);
    std::vector<size_t> part_of;
    for (int64_t row = 0; row < rows; ++row) part_of.push_back(static_cast<size_t>(maker.Below(keepers)));
    const int64_t data = maker.Below(rows + 1);
    const Joined joined = Join(AllLeaves(), Pieces(element, part_of, static_cast<size_t>(keepers), data));
    ASSERT_EQ(joined.why, "");
    EXPECT_EQ(joined.data, static_cast<uint64_t>(data));
    ASSERT_NO_FATAL_FAILURE(ExpectSame(joined.share, element));
  }
}

TEST(JoinPieces, TakesAWholePieceAsItIs) {
  const Columns element = Maker(3).Element(5);
  std::vector<Columns> pieces = Pieces(element, {1, 1, 1, 1, 1}, 3, 4);
  Joined joined = Join(AllLeaves(), pieces);
  ASSERT_EQ(joined.why, "");
  EXPECT_EQ(joined.share[0].memory.data, pieces[1][0].memory.data);
  EXPECT_EQ(joined.data, 4u);
  // In another order they are copied.
  auto* places = pieces[1].back().make<int64_t>() + 2;
  std::reverse(places, places + 5);
  joined = Join(AllLeaves(), pieces);
  ASSERT_EQ(joined.why, "");
  EXPECT_NE(joined.share[0].memory.data, pieces[1][0].memory.data);
  EXPECT_TRUE(joined.share[0].ours) << "nobody else has this memory";
  EXPECT_EQ(Listed<std::string_view>(joined.share[1])[0], Listed<std::string_view>(element[1])[4]);
}

// A per-rank element is one row of the share, and has any shape.
TEST(JoinPieces, TakesAWholeElement) {
  const std::vector<Leaf> leaves{{Leaf::kDense, 0, 1}, {Leaf::kDense, 1, 1}};
  const Columns element{Zeros(kFloat, {}), Zeros(kFloat, {7})};
  for (const bool filler : {false, true}) {
    Columns piece = element;
    piece.push_back(PieceHead(1, filler ? 0 : 1, {0}));
    const Joined joined = Join(leaves, {{PieceHead(1, filler ? 0 : 1, {})}, piece});
    ASSERT_NO_FATAL_FAILURE(ExpectSame(joined.share, element));
    EXPECT_EQ(joined.data, filler ? 0u : 1u);
  }
}

TEST(JoinPieces, ThatAreNoShareAreAnError) {
  const std::vector<Leaf> leaves{{Leaf::kDense, 0, 1}};
  const auto piece = [](int64_t all, int64_t data, const std::vector<int64_t>& places) {
    return Columns{Zeros(kFloat, {static_cast<int64_t>(places.size())}), PieceHead(all, data, places)};
  };
  const auto why = [&leaves](const std::vector<Columns>& pieces) { return Join(leaves, pieces).why; };
  const std::string first = "piece 0 of a share is wrong: ", second = "piece 1 of a share is wrong: ";
  const std::string rows = "the rows of component 0 can't be joined: ";
  EXPECT_EQ(why({piece(3, 3, {0, 2}), piece(3, 3, {1})}), "");
  EXPECT_EQ(why({}), "a share came without its components");
  EXPECT_EQ(why({{PieceHead(0, 0, {})}}), "a share came without its components");
  EXPECT_EQ(why({{}}), first + "it has no columns");
  for (const Column& head : {Zeros(kInt64, {1}), Zeros(kInt64, {1, 2}), Zeros(kFloat, {2}), Zeros(kInt64, {})})
    EXPECT_EQ(why({{Zeros(kFloat, {0}), head}}), first + "it has no head");
  EXPECT_EQ(why({piece(3, 3, {0, 2}), piece(3, 2, {1})}), second + "other pieces are of another share");
  EXPECT_EQ(why({piece(3, 3, {0, 2}), piece(4, 3, {1})}), second + "other pieces are of another share");
  EXPECT_EQ(why({piece(2, 3, {0, 1})}), first + "it has a share of 2 rows, of which 3 are data");
  EXPECT_EQ(why({piece(-1, -1, {})}), first + "it has a share of -1 rows, of which -1 are data");
  EXPECT_EQ(why({piece(3, 3, {0, 3}), piece(3, 3, {1})}), first + "it has row 3 of a smaller share");
  EXPECT_EQ(why({piece(3, 3, {0, 2}), piece(3, 3, {-1})}), second + "it has row -1 of a smaller share");
  EXPECT_EQ(why({piece(3, 3, {0, 2}), piece(3, 3, {2})}), second + "row 2 came twice");
  EXPECT_EQ(why({piece(3, 3, {0}), piece(3, 3, {1})}), "a share of 3 rows came with 2 rows");
  EXPECT_EQ(why({piece(INT64_MAX, 3, {0})}), "a share of 9223372036854775807 rows came with 1 rows");
  EXPECT_EQ(why({{PieceHead(2, 2, {0})}, piece(2, 2, {1})}), first + "it has 0 components");
  EXPECT_EQ(why({{Zeros(kFloat, {1}), Zeros(kFloat, {1}), PieceHead(2, 2, {0})}, piece(2, 2, {1})}),
            first + "it has 2 components");
  EXPECT_EQ(why({{Zeros(kFloat, {3}), PieceHead(3, 3, {0, 1})}, piece(3, 3, {2})}),
            rows + "a piece has 2 places, but another number of rows");
  EXPECT_EQ(why({{Zeros(kInt32, {2}), PieceHead(3, 3, {0, 1})}, piece(3, 3, {2})}),
            rows + "they have the types int32 and float");
  EXPECT_EQ(why({{Zeros(kFloat, {2, 1}), PieceHead(3, 3, {0, 1})}, piece(3, 3, {2})}),
            rows +
                "they have the shapes [1] and []. Give all rows one shape, make "
                "it a ragged "
                "tensor, or use batch=\"per_rank\"");
  const auto many = [](int64_t place) {
    return Columns{Zeros(kFloat, {1, int64_t{1} << 62, 0}), PieceHead(2, 2, {place})};
  };
  EXPECT_EQ(why({many(0), many(1)}), rows + "a tensor can't have so many");
}

}  // namespace
}  // namespace hvdata
