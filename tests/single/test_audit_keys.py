# SPDX-License-Identifier: Apache-2.0
"""The keys of an audit, by which it recognizes rows, in one process."""

import collections
import itertools
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from horovod_data.auditing import keys


def words(values):
    return keys.given_keys(np.asarray(values, np.int64)).words


def given(values):
    return keys.given_keys(values).words.tolist()


def content(element):
    return keys.row_digests(element).tolist()


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda values: tf.constant(values, tf.int64)],
                         ids=["list", "tuple", "numpy", "tensor"])  # fmt: skip
def test_whole_numbers_stand_for_themselves(form):
    made = keys.given_keys(form([3, -1, 2**62])).words
    assert [keys.shown(*map(int, row)) for row in made] == [3, -1, 2**62]


def test_whole_numbers_of_all_types_are_equal():
    for dtype in (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64):
        assert (keys.given_keys(np.array([5, 7], dtype)).words == words([5, 7])).all(), dtype
    large = keys.given_keys(np.array([2**64 - 1], np.uint64)).words
    assert keys.shown(*map(int, large[0])) == 2**64 - 1 and (large != words([-1])).any()
    assert given(range(5, -4, -2)) == words([5, 3, 1, -1, -3]).tolist()


BOTH_SIDES = [-1, 5, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]


@pytest.mark.parametrize("values", [
    BOTH_SIDES, tuple(BOTH_SIDES), set(BOTH_SIDES), np.array(BOTH_SIDES, object), range(2**63 - 2, 2**63 + 2),
    [np.int64(-1), np.uint64(2**63)], [np.array(one) for one in BOTH_SIDES], 2**64, [-(2**63) - 1, 5]],
    ids=["list", "tuple", "set", "objects", "range", "numpy's numbers", "numpy's arrays", "large", "small"])  # fmt: skip
def test_whole_numbers_that_no_dtype_holds_together_are_refused(values):
    """numpy makes floats of them, and neighbours become equal."""
    with pytest.raises(TypeError, match="not an array of one kind"):
        keys.given_keys(values)


def test_content_of_numbers_that_no_dtype_holds_is_refused():
    for element in ([2**63, -5], {"x": [2**63 + 1, -1]}):
        with pytest.raises(TypeError, match="whole numbers that no dtype of numpy can hold together.*Pass key="):
            keys.row_digests(element)


@pytest.mark.parametrize("values, text", [
    ([("a", 1), ("b", 2, 3)], "the key is a list, not"), (("a", 1), "the key is a tuple, not"),
    (None, "the key is a NoneType, not")],
    ids=["tuples", "tuple", "None"])  # fmt: skip
def test_what_is_no_key(values, text):
    with pytest.raises(TypeError, match=f"{text} an array of one kind.*Let it be a whole number, a text") as raised:
        keys.given_keys(values)
    assert "Pass key=" not in str(raised.value)


FILES, OFFSETS = ["a", "a", "b", "b"], [0, 1, 0, 1]


@pytest.mark.parametrize("element, made, rows", [
    (np.zeros([4]), [1, 2], 4), (np.zeros([4, 3]), [7], 4), ({"x": np.zeros([4, 2]), "y": np.zeros([4])}, [1, 2], 4),
    (tf.zeros([4, 3]), tf.constant([1, 2]), 4), (["a", "b", "c", "d"], range(5), 4),
    ({"ids": [[1, 2, 3], [4, 5, 6]]}, [1, 2, 3], 2)],  # the rows of the list, not its columns
    ids=["numbers", "one in a list", "dict", "tensor", "texts", "lists"])  # fmt: skip
def test_another_number_of_keys_than_rows(element, made, rows):
    count = len(made)
    with pytest.raises(
        ValueError, match=f"returned {count} keys for an element of {rows} rows. Let it return one for each"
    ):
        keys.keys_of(element, lambda _: made)


@pytest.mark.parametrize("element, made", [
    (np.zeros([4]), [1, 2, 3, 4]), (np.zeros([4]), 7), (np.zeros([4]), "a"), (np.zeros([4]), np.int64(7)),
    (tf.zeros([4]), tf.constant(7)), (np.zeros([5, 4, 2]), [1, 2, 3, 4]), ([np.zeros(9)] * 4, [1, 2, 3, 4]),
    ((np.zeros([4, 2]), np.zeros([3])), [1, 2]), ({"x": np.zeros(3), "y": 1.0}, [5]), (np.zeros([0]), []), ((), [5]),
    ({"ids": [[1, 2, 3], [4, 5, 6]]}, [1, 4])],
    ids=str)  # fmt: skip
def test_numbers_of_keys_that_fit_the_rows(element, made):
    assert len(keys.keys_of(element, lambda _: made).words) == np.size(made)


@pytest.mark.parametrize("made", [
    (3, 7), ("train-1", "17"), (np.int64(3), tf.constant(7), "a"), (5,), (FILES, OFFSETS), (FILES, 7)],
    ids=["numbers", "texts", "all kinds", "one", "arrays", "an array and a number"])  # fmt: skip
def test_tuples_that_are_no_key(made):
    for element in ({"x": np.zeros([4, 3]), "id": 5}, (np.zeros([4]), np.zeros([5])), (1, 2)):
        for given, key in ((element, lambda _: made), ((element, made), 1)):
            with pytest.raises(TypeError, match="the key is a tuple. Make one text of several values"):
                keys.keys_of(given, key)


def test_a_tuple_of_two_arrays_is_no_key_of_two_rows():
    with pytest.raises(TypeError, match="the key is a tuple"):
        keys.keys_of(np.zeros([2, 3]), lambda _: (FILES, FILES))


def test_a_tuple_of_as_many_texts_as_rows():
    """PyTorch collates texts to such tuples."""
    for element in ([np.zeros([4, 2]), tuple(FILES)], {"x": np.zeros([4]), "name": FILES}):
        assert keys.keys_of(element, lambda _: tuple(FILES)).names == [b"a", b"a", b"b", b"b"]
    assert keys.keys_of([np.zeros([4, 2]), tuple(FILES)], 1).names == [b"a", b"a", b"b", b"b"]
    assert keys.keys_of(np.zeros([3]), lambda _: (7, 8, 9)).words.tolist() == words([7, 8, 9]).tolist()


@pytest.mark.parametrize("values", [
    ["é", "bc"], [b"\xc3\xa9", b"bc"], np.array(["é", "bc"]), tf.constant(["é", "bc"]), np.array(["é", "bc"], object)],
    ids=["texts", "bytes", "numpy", "tensor", "objects"])  # fmt: skip
def test_texts_are_equal_as_bytes(values):
    made = keys.given_keys(values)
    assert made.names == [b"\xc3\xa9", b"bc"] and made.words.tolist() == given("é") + given("bc")


@pytest.mark.parametrize("form", [
    lambda text: text, str.encode, np.array, np.str_, tf.constant, lambda text: np.array(text.encode(), object)],
    ids=["text", "bytes", "numpy", "numpy's text", "tensor", "object"])  # fmt: skip
def test_one_text_is_the_same_key_as_in_a_batch(form):
    made = keys.given_keys(form("é"))
    assert made.words.tolist() == given(["a", "é"])[1:] and made.names == ["é".encode()]
    assert keys.keys_of({"id": form("é")}, "id").words.tolist() == made.words.tolist()
    in_batch = content((np.arange(6).reshape(2, 3) % 3, ["é", "a"]))[:1]
    assert content((np.arange(3), form("é"))) == in_batch


def test_texts_that_end_in_nul():
    one, other = given(["a", "a\0"])
    assert one != other
    for text in ("a\0", b"a\0", tf.constant("a\0")):
        assert content((text, 1)) != content(("a", 1))


def test_one_key_for_an_element():
    for single in (7, np.int64(7), tf.constant(7)):
        assert given(single) == given([7])
    assert keys.given_keys(2.5).words.shape == (1, 2)
    assert keys.given_keys(np.zeros((3, 2))).words.shape == (3, 2) and keys.given_keys([]).words.shape == (0, 2)


ELEMENTS = {
    "numbers": (np.arange(12).reshape(4, 3), np.arange(4.0)),
    "texts": {"name": np.array(["a", "bc", "", "a b"], object), "x": np.arange(4, dtype=np.int16)},
    "bools": (np.array([[True], [False], [True], [True]]), np.arange(4)),
    "tensors": (tf.constant(["p", "q", "r", "s"]), tf.reshape(tf.range(8), [4, 2])),
    "bfloat16": (tf.cast(tf.range(4), tf.bfloat16),),
}


TABLES = {  # rows that are tables
    "texts in tables": tf.constant([[["a", "b"], ["c", "d"]], [["ab", ""], ["c", "d"]]]),
}


@pytest.mark.parametrize("name", [*ELEMENTS, *TABLES])
def test_a_rows_content_is_the_same_in_every_batch_and_alone(name):
    element = {**ELEMENTS, **TABLES}[name]
    made = content(element)
    assert len(set(map(tuple, made))) == len(made) > 1
    rows = tf.data.Dataset.from_tensor_slices(element)
    if name in ELEMENTS:
        assert [row for part in rows.skip(1).batch(2) for row in content(part)] == made[1:]
    numbered = rows.enumerate()
    alone = [key for row in numbered for key in content(row)]
    assert alone == [key for batch in numbered.batch(2) for key in content(batch)]


@pytest.mark.parametrize("component", [
    tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense([[0, 1], [2, 0]])], ids=["ragged", "sparse"])  # fmt: skip
def test_ragged_and_sparse_tensors_need_a_key(component):
    with pytest.raises(TypeError, match=r"component \[0\] of the element is of type .*can't make an array. Pass key="):
        content((component, tf.range(2)))
    assert keys.keys_of((component, tf.range(2)), 1).words.tolist() == words(range(2)).tolist()


def test_content_means_dtype_shape_and_bytes():
    ints = np.zeros([2, 2], np.int32)
    others = [np.zeros([2, 4], np.int32), np.zeros([2, 4], np.float32), np.zeros([2, 2, 2], np.int32)]
    for one, other in itertools.combinations([*others, np.zeros([2, 2], np.int64), (ints, ints)], 2):
        assert content(one) != content(other)
    numbers = np.array([1, 16777216], "<i4")
    assert content(numbers.astype(">i4")) == content(numbers), "not a byte order"


def test_records_need_a_key():
    """Bytes between their fields may differ."""
    for record in np.zeros(2, [("a", "u1"), ("b", "f8")]), np.zeros(2, [("a", "u1")])[0]:
        with pytest.raises(
            TypeError, match="a record, whose bytes may differ although its fields are equal.*Pass key="
        ):
            content(record)


@pytest.mark.parametrize("made", [
    lambda: (np.ones([4000, 4000], np.float32), np.ones([4000, 1000], np.float32)), lambda: np.ones([8000, 4000], np.float32).T,
    lambda: (np.ones([2000, 8000], np.float32), ["text"] * 2000)], ids=["two", "columns in a row", "beside texts"])  # fmt: skip
def test_keys_of_what_is_large_need_no_copy_of_it(made):
    element = made()
    tracemalloc.start()
    try:
        keys.row_digests(element)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", [list, tuple])
@pytest.mark.parametrize("nest", [
    lambda x, texts: [x, texts], lambda x, texts: (x, texts), lambda x, texts: {"x": x, "name": texts},
    lambda x, texts: [x, [texts, {"y": x}]]], ids=["list", "tuple", "dict", "deeper"])  # fmt: skip
def test_texts_as_pytorch_collates_them_are_one_component(form, nest):
    x = np.arange(12.0).reshape(4, 3)
    made = content(nest(x, form("abcd")))
    assert made == content(nest(x, np.array(list("abcd"), object))) and len(made) == 4
    assert keys.keys_of(nest(x, form("abcd")), lambda _: range(4)).words.tolist() == words(range(4)).tolist()
    with pytest.raises(ValueError, match="returned 3 keys for an element of 4 rows"):
        keys.keys_of(nest(x, form("abcd")), lambda _: range(3))


def test_a_row_with_a_tuple_of_texts_has_the_key_it_has_in_a_batch():
    """In a batch each of its texts is a component."""
    rows = [content((np.int64(i), ("abc"[i], "def"[i]))) for i in range(3)]
    assert [[row] for row in content([np.arange(3), [("a", "b", "c"), ("d", "e", "f")]])] == rows


def test_components_by_name_and_place():
    Point = collections.namedtuple("Point", "x y")
    element = ({"id": "right", "x": 1}, Point(2, ["left"]))
    assert keys.component_of(element, (0, "id")) == "right"
    assert keys.component_of(element, (1, "y", 0)) == "left" and keys.component_of(element[0], "x") == 1
    for missing in ("id", (0, "y"), (1, "z"), 2):
        with pytest.raises((KeyError, IndexError, TypeError)):
            keys.component_of(element, missing)


def test_what_has_no_bytes_is_named():
    with pytest.raises(TypeError, match=r"^component \[1\] of the element is of type object, of which.*Pass key="):
        keys.row_digests((np.zeros(2), object()))
    with pytest.raises(TypeError, match="^the element is of type object, of which"):
        keys.row_digests(object())


def test_keys_are_spread_evenly():
    for made in (words(np.arange(40000)), words(np.arange(0, 4000000, 1000)), keys.row_digests(np.arange(40000))):
        for ranks in (2, 3, 16):
            order, each = keys.in_parts(made, ranks)
            assert sorted(order.tolist()) == list(range(len(made)))
            parts = keys.part_of(made[order]).astype(int)
            rank_of = np.searchsorted(np.arange(1, ranks) * keys.PARTS // ranks, parts, side="right")
            assert (np.diff(parts) >= 0).all() and np.bincount(rank_of, minlength=ranks).tolist() == each
            assert min(each) > 0.75 * len(made) / ranks and max(each) < 1.3 * len(made) / ranks, (ranks, each)


ARRAYS = {"ids": np.array([[1, 2, 3], [4, 5, 6]]), "label": np.array([0, 1])}


@pytest.mark.parametrize("lists, arrays", [
    ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
    ([[1, 2, 3], [4, 5, 6]], ARRAYS["ids"]),
    ([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], np.arange(1, 9).reshape(2, 2, 2)),
    ([["a", "b\0"], ["c", "d"]], np.array([["a", "b\0"], ["c", "d"]], object)),
    ({"ids": [[1, 2, 3], [4, 5, 6]], "label": [0, 1]}, ARRAYS),
    ({"ids": [[1, 2, 3], [4, 5, 6]], "label": np.array([0, 1])}, ARRAYS),
], ids=["square", "vectors", "matrices", "texts", "components", "beside an array"])  # fmt: skip
def test_batches_of_pythons_own_lists(lists, arrays):
    """Each entry is a row, the same as in an array."""
    assert content(lists) == content(arrays)


@pytest.mark.parametrize(
    "lists", [[[1, 2, 3], [4], []], [["a"], ["b", "c"]], [[["a"]], [[]]], [[1, 2, 3], [], [4, 5, 6]]], ids=str
)
def test_lists_of_several_lengths_are_refused(lists):
    for element in ({"x": lists, "label": list(range(len(lists)))}, {"x": lists, "id": 7}):
        with pytest.raises(TypeError, match=r"component \['x'\] of the element is of type list.*Pass key="):
            content(element)


TEXTS = ["a", "b", "c"]


@pytest.mark.parametrize("element, rows", [
    ([[]], 0), ([], 0), (([], []), 0), ({"x": []}, 0), ([[], {"y": ([],)}], 0), (np.empty([0, 3]), 0),
    ((np.zeros([4]), []), 4),  # an empty list beside others is no component
    ((np.zeros([4, 2]), np.zeros([3])), 1),  # rows need an axis that all components have
    ({"a": np.zeros([4, 2]), "b": 1.5, "c": "text"}, 1), ((1, 2), 1), ([1, 2], 2), ((None, np.zeros([4])), 4),
    ([("a", "b", "c"), ("d", "e", "f")], 3), (("a", "b", "c"), 1), ({"name": ("a", "b")}, 2),
    (([1, 2, 3], [4, 5, 6]), 3),
    ([TEXTS, [0, 1, 1]], 3),  # a component each
    ([[[1, 2], [3, 4], [5, 6]], [0, 1, 0]], 3),
    ([("a", "b"), ("c", "d")], 2),  # as PyTorch collates two texts of a sample,
    ([{"q": TEXTS}, {"a": TEXTS}], 3),  # two mappings,
    ([{"q": TEXTS}, {"q": TEXTS}], 3),
    ([tuple(TEXTS), {"a": TEXTS}], 3),  # a text and a mapping,
    ([{"q": TEXTS}], 3),  # and one mapping
    ({"boxes": [[0, 0], [1, 1]], "id": 7}, 1),
    ({"boxes": [[0, 0], [1, 1]], "id": tf.constant(7)}, 1),
    ({"c": [["a", "b"], [1, 2]], "id": 7}, 1),
], ids=str)  # fmt: skip
def test_what_lists_are(element, rows):
    assert keys.row_digests(element).shape == (rows, 2)
