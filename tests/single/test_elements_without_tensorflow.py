# SPDX-License-Identifier: Apache-2.0
"""Specs, columns and arrays of horovod_data/elements, which know no TensorFlow, beside TensorFlow's own."""

import collections
import ctypes
import gc
import json
import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from horovod_data.channel import tensors as of_tensorflow
from horovod_data.elements import arrays, columns, dtypes, nests, specs
from horovod_data.elements.composites import Ragged, Sparse
from horovod_data.native import calls

Pair = collections.namedtuple("Pair", "first second")


def delivered(spec, element, to="numpy", writable=False):
    """The element behind a way through columns, and the owners that were released, in order."""
    released = []
    given = []
    for number, column in enumerate(columns.Maker(spec).columns(element), 1):
        dims = (ctypes.c_int64 * len(column.dims))(*column.dims)
        owner = number if column.size else None
        one = calls.Column(column.number, len(dims), dims, column.address, column.size, owner)
        one.kept = column.kept
        given.append(one)
    maker = arrays.Maker(specs.from_json(json.loads(json.dumps(specs.to_json(spec)))), to, writable, released.append)
    made = maker.element(given)
    made_of = [one.kept for one in given]
    return made, released, made_of


def same(one, other):
    for (name, a), (name_too, b) in zip(nests.leaves(one), nests.leaves(other)):
        assert name == name_too
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes() or a.tolist() == b.tolist(), name


def test_numbers_of_types_are_tensorflows():
    for number, name in dtypes.NAMES.items():
        if hasattr(tf.dtypes, name):
            assert tf.as_dtype(name).as_datatype_enum == number, name
    ours = set(dtypes.NAMES.values())
    theirs = {one.name for one in vars(tf.dtypes).values() if isinstance(one, tf.DType)}
    assert theirs - ours == {"resource", "variant"}


@pytest.mark.parametrize("name", sorted(set(dtypes.NAMES.values()) - {dtypes.TEXT}))
def test_numpy_forms_have_the_size_of_tensorflows(name):
    if hasattr(tf.dtypes, name) and hasattr(ml_dtypes, name) or dtypes.bits_of(name) == name:
        assert dtypes.numpy_of(name).itemsize == tf.as_dtype(name).size
        assert np.dtype(dtypes.bits_of(name)).itemsize == tf.as_dtype(name).size


ELEMENT = {
    "z": np.arange(6, dtype=np.float32).reshape(3, 2),
    "a": (np.array([True, False]), None, [np.int8(3), np.array(2.5)]),
    "pair": Pair("Grüße", np.array([b"one", b"", b"\0two\xff"], object)),
    "texts": ["x", "yy"],
    "numbers": [1, 2, 3],
    "rows": [[1, 2], [3, 4]],
    "b": np.ones([2, 3], ml_dtypes.bfloat16),
    "empty": np.zeros([0, 4], np.complex64),
}


def test_an_element_comes_through_as_it_was():
    spec = columns.spec_of(ELEMENT)
    made, released, _ = delivered(spec, ELEMENT)
    assert list(made) == list(ELEMENT) and made["a"][1] is None and type(made["a"][2]) is list
    assert made["pair"].first.tolist() == "Grüße" and made["pair"]._fields == ("first", "second")
    assert made["pair"].second.dtype == object and made["pair"].second.tolist() == [b"one", b"", b"\0two\xff"]
    assert made["texts"].tolist() == ["x", "yy"] and made["rows"].tolist() == [[1, 2], [3, 4]]
    assert made["numbers"].dtype == np.int64 and made["b"].dtype == ml_dtypes.bfloat16
    assert made["a"][2][0].dtype == np.int8 and made["a"][2][1].shape == ()
    same(made["z"], ELEMENT["z"])
    same(made["empty"], ELEMENT["empty"])
    texts = 3
    assert len(released) == texts, "texts are copied"
    del made
    gc.collect()
    assert len(released) == len(set(released)) == len(specs.components(spec)) - 1, "an empty array has no memory"


def test_arrays_are_views_that_keep_the_memory():
    element = {"x": np.arange(12.0).reshape(3, 4)}
    made, released, (kept,) = delivered(columns.spec_of(element), element)
    assert np.shares_memory(made["x"], element["x"]) and not made["x"].flags.writeable
    with pytest.raises(ValueError):
        made["x"].flags.writeable = True
    row = made["x"][1:2]
    del made
    gc.collect()
    assert not released and row.tolist() == [[4, 5, 6, 7]]
    del row
    gc.collect()
    assert released == [1]
    made, released, _ = delivered(columns.spec_of(element), element, writable=True)
    made["x"][0, 0] = 7
    assert element["x"][0, 0] == 0 and released == [1]


def test_ragged_and_sparse():
    ragged = Ragged(np.arange(5.0), [np.array([0, 1, 3]), np.array([0, 2, 2, 5])])
    sparse = Sparse(np.array([[0, 1], [2, 0]]), np.array(["a", "b"]), np.array([3, 2]))
    element = (ragged, {"s": sparse})
    spec = columns.spec_of(element)
    assert spec[0].ragged_rank == 2 and len(spec[0].shape) == 3 and spec[1]["s"].rank == 2
    made, *_ = delivered(spec, element)
    assert [[row.tolist() for row in rows] for rows in made[0].rows()] == [[[0, 1]], [[], [2, 3, 4]]] and len(
        made[0]
    ) == 2
    assert (
        made[1]["s"].values.tolist() == ["a", "b"] and made[1]["s"].indices.dtype == np.int64 and len(made[1]["s"]) == 3
    )
    same_splits = Ragged(np.arange(5.0), (np.array([0, 5], np.int32),))
    assert columns.spec_of(same_splits).splits == "int32"
    with pytest.raises(TypeError, match="row_splits are not all int64"):
        columns.spec_of(Ragged(np.arange(5.0), [np.array([0.0, 5.0])]))
    with pytest.raises(TypeError, match="row_splits of hvdata.Ragged is"):
        Ragged(np.arange(5.0), np.array([0, 5]))
    for indices, size, shapes in (
        (np.array([0, 1]), [3], r"\(2,\), \(1,\), \(1,\)"),
        (np.zeros((2, 2), int), [3, 3], r"\(2, 2\), \(1,\), \(2,\)"),
    ):
        with pytest.raises(TypeError, match=f"hvdata.Sparse whose parts have the shapes {shapes}"):
            columns.spec_of(Sparse(indices, np.array([1.0]), np.array(size)))


@pytest.mark.parametrize("values, splits", [
    (np.arange(5.0), [[1, 5]]),
    (np.arange(5.0), [[0, 4]]),
    (np.arange(5.0), [[0, 3, 2, 5]]),
    (np.arange(5.0), [[]]),
    (np.arange(5.0), [[0, 1], [0, 2, 5]]),
    (np.float32(1), [[0, 1]]),
    (["a", "b"], [[0, 1]]),
])  # fmt: skip
def test_row_splits_that_lose_values(values, splits):
    right = Ragged(np.arange(2.0), [np.array([0, 2])])
    wrong = Ragged(values, [np.array(one, "int64") for one in splits])
    for make in (lambda: columns.spec_of(wrong), lambda: columns.Maker(columns.spec_of(right)).columns(wrong)):
        with pytest.raises(
            TypeError, match="the element is an hvdata.Ragged whose row_splits do not divide its values"
        ):
            make()


@pytest.mark.parametrize("element, text", [
    ({"x": object()}, r"component \['x'\] is a object, which can't be sent"),
    (({1, 2},), r"component \[0\] is a set"),
    (np.ma.masked_array([1, 2], [True, False]), "is a masked array, whose mask would be lost"),
    (tf.ragged.constant([[1], [2, 3]]), "RaggedTensor, .*Make an hvdata.Ragged of it"),
    (tf.sparse.from_dense([0, 1]), "SparseTensor, .*Make an hvdata.Sparse of it"),
    (np.array(["2020-01-01"], "datetime64[D]"), r"^the element is an array of datetime64\[D\]"),
    (np.zeros(2, [("a", "i4")]), "is an array of void"),
    (np.array([b"a", 3], object), "an array of objects, and one of them is a int"),
    ([[1, 2], [3]], "a list of lists of different lengths.*hvdata.Ragged"),
    ({("a",): 1}, r"a dict with the key \('a',\), a tuple"),
    ({"a": 1, 2: 1}, "strings and numbers as keys"),
    ({"x": [1, "a"]}, r"component \['x'\] is a list with both numbers and texts"),
    ([["a"], [1]], "a list with both numbers and texts"),
    ([["a"], ["b", "c"]], "a list of lists of different lengths"),
])  # fmt: skip
def test_what_can_not_be_sent(element, text):
    with pytest.raises(TypeError, match=text):
        columns.spec_of(element)


@pytest.mark.parametrize("first, later, text", [
    ({"x": 1}, {"y": 1}, r"the element is a dict of 'y', but in the first element it was a dict of 'x'"),
    ((1, {"a": 2}), (1, {"a": None, "b": 2}), r"component \[1\] is a dict of 'a', 'b'"),
    ((1, 2), (1, 2, 3), "the element is a tuple of 3, but in the first element it was a tuple of 2"),
    ((1, 2), [1, 2], "the element is a list of 2, but in the first element it was a tuple of 2"),
    ((None, 2), (1, 2), r"component \[0\] is a int, but in the first element it was None"),
    ({"x": np.float32([1])}, {"x": np.float64([1])}, r"component \['x'\] is float64 with 1 axes, but .* float32 with 1 axes"),
    (np.zeros([2, 2]), np.zeros([2]), "is float64 with 1 axes, but in the first element it was float64 with 2 axes"),
    ("text", b"text", "the element is bytes with 0 axes, but in the first element it was str with 0 axes"),
    (np.zeros(2), Ragged(np.zeros(2), [np.array([0, 2])]), "is ragged float64 with 2 axes"),
    (["a", "b"], ["a", b"b"], "the element is bytes with 1 axes, but in the first element it was str with 1 axes"),
    (Ragged(["a"], [np.array([0, 1])]), Ragged([b"a"], [np.array([0, 1])]), "is ragged bytes .* it was ragged str"),
])  # fmt: skip
def test_later_elements_are_as_the_first(first, later, text):
    spec = columns.spec_of(first)
    columns.Maker(spec).columns(first)
    with pytest.raises(TypeError, match=text):
        columns.Maker(spec).columns(later)


def test_sizes_may_change_and_texts_may_be_missing():
    spec = columns.spec_of({"x": np.zeros([2, 3]), "t": ["a"]})
    made, *_ = delivered(spec, {"x": np.zeros([5, 1]), "t": np.array([], object)})
    assert made["x"].shape == (5, 1) and made["t"].shape == (0,)


@pytest.mark.parametrize("first", [[1, 2], ["a"], [[1], [2]], [2.5], [b"a"]])
def test_an_empty_list_has_the_type_of_the_first_element(first):
    """numpy makes an array of float64 of it."""
    empty = [[]] if isinstance(first[0], list) else []
    want, *_ = delivered(columns.spec_of({"t": first}), {"t": first})
    made, *_ = delivered(columns.spec_of({"t": first}), {"t": empty})
    assert made["t"].dtype == want["t"].dtype and made["t"].shape == np.shape(empty)
    ragged = [Ragged(values, [np.array([0, len(values)])]) for values in (first, empty)]
    made, *_ = delivered(columns.spec_of(ragged[0]), ragged[1])
    assert made.values.dtype == want["t"].dtype and made.row_splits[0].tolist() == [0, len(empty)]
    with pytest.raises(TypeError, match="is float64 with 1 axes, but in the first element it was .* with 2 axes"):
        columns.Maker(columns.spec_of([["a"]])).columns([])


@pytest.mark.parametrize("texts", [
    [b"x\0", b""],
    [["a\0"], ["b"]],
    ["a", "\0"],
    [[b"\0\0", b"abc"]],
    ["Grüße", "x" * 1000],
])  # fmt: skip
def test_lists_of_texts_come_whole(texts):
    made, *_ = delivered(columns.spec_of({"t": texts}), {"t": texts})
    assert made["t"].tolist() == texts


@pytest.mark.skipif(not hasattr(getattr(np, "dtypes", None), "StringDType"), reason="numpy 1 has no StringDType")
@pytest.mark.parametrize("texts", [["Grüße", "a\0"], []])
def test_texts_of_numpys_string_type(texts):
    array = np.array(texts, np.dtypes.StringDType())
    made, *_ = delivered(columns.spec_of(array), array)
    assert made.tolist() == texts and columns.spec_of(array).text


def test_a_list_of_texts_takes_the_memory_of_its_texts():
    texts = ["x"] * 1000 + ["x" * 100_000]
    tracemalloc.start()
    columns.Maker(columns.spec_of(texts)).columns(texts)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10_000_000, "the texts have 101 KB, and padded to one length 400 MB"


@pytest.mark.parametrize("kind", ["U1", "S1"])
def test_the_type_of_an_empty_array_says_which_texts_follow(kind):
    """The type of an array without texts still shows their kind."""
    spec = columns.spec_of({"t": np.array([], kind), "r": Ragged(np.array([], kind), [np.array([0, 0])])})
    later = {"t": np.array(["a"]).astype(kind), "r": Ragged(np.array(["b"]).astype(kind), [np.array([0, 1])])}
    made, *_ = delivered(spec, later)
    assert (made["t"].tolist(), made["r"].values.tolist()) == ((["a"], ["b"]) if kind == "U1" else ([b"a"], [b"b"]))


def test_a_namedtuple_with_renamed_fields():
    Renamed = collections.namedtuple("Renamed", "x class", rename=True)
    element = Renamed(1, np.arange(3))
    made, *_ = delivered(columns.spec_of(element), element)
    assert made._fields == ("x", "_1") and made._1.tolist() == [0, 1, 2]


def test_an_error_while_an_element_is_made_releases_all_columns(monkeypatch):
    element = {"a": np.arange(3), "b": np.arange(4), "t": ["x"], "z": np.arange(5)}
    spec = columns.spec_of(element)
    released = []
    as_made = arrays.Maker._array

    def fails(self, column, *rest):
        if column.bytes == 4 * 8:  # of b
            released.append(self.release)
            raise MemoryError
        return as_made(self, column, *rest)

    monkeypatch.setattr(arrays.Maker, "_array", fails)
    with pytest.raises(MemoryError):
        delivered(spec, element)
    gc.collect()
    assert sorted(released[0].__self__) == [1, 2, 3, 4]


@pytest.mark.slow
def test_texts_of_more_than_two_gib():
    data = np.zeros(2**31 + 16, "u1")
    data[-1] = 7
    copy = calls.bytes_at(data.ctypes.data, data.nbytes)
    assert len(copy) == data.nbytes and copy[-1] == 7
    del copy
    texts = calls.Column(dtypes.number_of("string"), 0, None, data.ctypes.data, data.nbytes, None)
    data[:8] = np.frombuffer(np.uint64(data.nbytes - 8).tobytes(), "u1")
    assert len(arrays._decoded(texts, ())[()]) == data.nbytes - 8


def test_arrays_of_other_orders_are_copied():
    element = (np.arange(6).reshape(2, 3).T, np.arange(3, dtype=">i4"), np.arange(10)[::3])
    made, *_ = delivered(columns.spec_of(element), element)
    assert [one.tolist() for one in made] == [one.tolist() for one in element] and made[1].dtype == np.int32


def test_torch_tensors_over_the_same_memory():
    torch = pytest.importorskip("torch")
    element = {
        "x": torch.arange(6, dtype=torch.float32).reshape(2, 3).T,
        "b": torch.ones(2, dtype=torch.bfloat16),
        "t": ["a", "b"],
        "grad": torch.ones(2, requires_grad=True),
        "ragged": Ragged(torch.arange(3), [torch.tensor([0, 1, 3])]),
    }
    made, released, _ = delivered(columns.spec_of(element), element, to="torch")
    assert torch.equal(made["x"], element["x"]) and torch.equal(made["b"], element["b"])
    assert made["t"] == ["a", "b"] and not made["grad"].requires_grad
    assert [row.tolist() for row in made["ragged"].rows()] == [[0], [1, 2]]
    assert made["b"].data_ptr() == element["b"].data_ptr() and len(released) == 1
    with pytest.raises(TypeError, match="on meta.*use .cpu()"):
        columns.spec_of(torch.ones(2, device="meta"))
    with pytest.raises(TypeError, match="torch.sparse_coo"):
        columns.spec_of(torch.ones(2).to_sparse())
    with pytest.raises(TypeError, match="a tensor of quint8, which can't be sent"):
        columns.spec_of(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8))
    with pytest.raises(TypeError, match="torch has no type for the element, quint8"):
        arrays.check_spec(specs.DenseSpec((), "quint8"), "torch")
    texts = Ragged(["a", "b"], [np.array([0, 2])]), Sparse(np.array([[0]]), ["c"], np.array([1]))
    (ragged, sparse), *_ = delivered(columns.spec_of(texts), texts, to="torch")
    assert ragged.rows() == [["a", "b"]] and sparse.values == ["c"]


def test_older_versions_of_torch_have_the_types_of_the_bytes():
    known = {"uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"}
    assert {dtypes.bits_of(name) for name in ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float16", "bool")} <= known


def test_the_program_learns_what_it_lacks(monkeypatch):
    with pytest.raises(ValueError, match="to='jax' is not known.*distribute_dataset"):
        arrays.check("jax", False)
    with pytest.raises(TypeError, match="writable must be True or False, not 1"):
        arrays.check("numpy", 1)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtypes.numpy_of.cache_clear()
    with pytest.raises(ImportError, match="numpy has no bfloat16 without ml_dtypes"):
        arrays.check_spec(specs.DenseSpec((), "bfloat16"), "numpy")
    dtypes.numpy_of.cache_clear()
    if "torch" not in sys.modules:
        monkeypatch.setitem(sys.modules, "torch", None)
        monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.setattr(sys, "path", [])
        monkeypatch.setattr(sys, "path_importer_cache", {})
        with pytest.raises(ImportError, match='to="torch" needs PyTorch'):
            arrays.check("torch", False)


SPECS = [
    tf.TensorSpec([None, 3], tf.float32, "image"),
    tf.TensorSpec(None, tf.string),
    tf.SparseTensorSpec([4, None], tf.int64),
    tf.RaggedTensorSpec([6, None, 3], tf.float32, 1),
    tf.RaggedTensorSpec([6, 2, None], tf.float32, 2, tf.int32),
    tf.RaggedTensorSpec(None, tf.float32, 1, flat_values_spec=tf.TensorSpec([None, 7], tf.float32)),
    tf.RaggedTensorSpec([None], tf.float32, 0),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_specs_of_tensorflow_there_and_back(spec):
    ours = of_tensorflow.spec_of(spec)
    assert of_tensorflow.tf_spec(specs.from_json(json.loads(json.dumps(specs.to_json(ours))))) == spec


def test_nests_there_and_back():
    spec = collections.OrderedDict(b=tf.TensorSpec([1]), a=Pair(None, [tf.TensorSpec([2]), (tf.TensorSpec([]),)]))
    ours = specs.from_json(json.loads(json.dumps(specs.to_json(of_tensorflow.spec_of(spec)))))
    assert type(ours) is collections.OrderedDict and list(ours) == ["b", "a"] and ours["a"]._fields == Pair._fields
    assert type(ours["a"]).__name__ == "Pair" and type(ours["a"].second) is list
    names = [name for name, _ in nests.leaves(ours)]
    assert names == [name for name, _ in nests.leaves(spec)] == ["['a'].second[0]", "['a'].second[1][0]", "['b']"]
    flat = [leaf.shape for _, leaf in nests.leaves(ours)]
    assert flat == [tuple(leaf.shape.as_list()) for leaf in tf.nest.flatten(spec) if leaf is not None]


class AttrDict(dict):
    """A dict whose keys are attributes, too."""

    def __init__(self, *args):
        super().__init__(*args)
        self.__dict__ = self


def test_dicts_that_are_filled():
    got = nests.filled(AttrDict({"b": 1, "a": 2}), ["of a", "of b"])
    assert type(got) is AttrDict and list(got) == ["b", "a"]
    assert got.a == got["a"] == "of a" and got.b == got["b"] == "of b"
    got = nests.filled(collections.defaultdict(list, a=1), ["of a"])
    assert got["a"] == "of a" and got["b"] == []


def test_readers_with_different_texts():
    text = "for reader 0 the element is str of shape \\(None,\\), for reader 1 it is string of shape"
    with pytest.raises(ValueError, match=text):
        specs.common_spec([columns.spec_of(["a"]), columns.spec_of([b"a"])])


@pytest.mark.parametrize("one", SPECS, ids=str)
@pytest.mark.parametrize(
    "other", [*SPECS, tf.TensorSpec([2, 3], tf.float32), tf.SparseTensorSpec([4, 1], tf.int64)], ids=str
)
def test_common_specs_are_tensorflows(one, other):
    if one == SPECS[0] and other != one:  # names may differ
        one = tf.TensorSpec(one.shape, one.dtype)
    if other == SPECS[0]:
        other = tf.TensorSpec(other.shape, other.dtype, getattr(one, "name", None))
    theirs = one.most_specific_common_supertype([other])
    try:
        ours = of_tensorflow.tf_spec(specs.common_spec([of_tensorflow.spec_of(one), of_tensorflow.spec_of(other)]))
    except ValueError as error:
        ours = None
        assert "for reader 0 the element is" in str(error)
    assert ours == theirs


@pytest.mark.parametrize("element, want", [
    (("x", "y"), ("x", "y", "w")), (["x", "y"], ("x", "y", "w")), (Pair("x", "y"), (Pair("x", "y"), "w")), (["x"], (["x"], "w")),
    ({"x": 1}, ({"x": 1}, "w")),
])  # fmt: skip
def test_where_a_weight_goes(element, want):
    assert specs.with_weight(element, "w") == want
