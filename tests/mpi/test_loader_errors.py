# SPDX-License-Identifier: Apache-2.0
"""loader(): errors of the source and of the arguments, on all ranks."""

import numpy as np
import pytest
from loaders import loads, of_epoch
from together import prefix, raises_everywhere, written

pytestmark = pytest.mark.world(np=3)


def test_the_first_element_fails_in_the_call(hvdata, comm):
    raises_everywhere(
        comm, lambda: hvdata.loader(failing(KeyError("no such row"), 0), batch="per_rank"), KeyError, "no such row"
    )


def failing(error, after):
    def batches():
        yield from range(after)
        raise error

    return batches


class Strange(Exception):
    pass


@pytest.mark.parametrize("error, kind, text", [
    (KeyError("no such row"), KeyError, "no such row"),
    (FileNotFoundError(2, "is gone", "a.txt"), FileNotFoundError, "is gone.*a.txt"),
    (Strange("text"), RuntimeError, "Strange: text"),
    (SystemExit(3), RuntimeError, "SystemExit: 3"),
])  # fmt: skip
def test_errors_of_the_source(hvdata, comm, error, kind, text):
    n = comm.size
    loader = loads(hvdata, failing(error, 2 * n), name="fails")

    def steps():
        it = iter(loader)
        assert [next(it).item() // n for _ in range(2)] == [0, 1]
        next(it)

    raises_everywhere(comm, steps, kind, prefix("fails", 1, 2), text)


@pytest.mark.parametrize("where", ["element", "function of the epoch"])
def test_the_reader_shows_the_traceback(hvdata, comm, capfd, where):
    """The ranks' error has the text alone, which may be empty."""

    def source(epoch):
        assert epoch == 1 or where == "element"
        return failing(AssertionError(), 0)() if epoch == 2 else range(comm.size)

    loader = hvdata.loader(source, batch="per_rank")
    assert of_epoch(hvdata, comm, loader) == list(range(comm.size))
    raises_everywhere(comm, lambda: list(loader), AssertionError)
    said = written(comm, capfd, "AssertionError")
    assert "the source has raised an error\nTraceback (most recent call last):\n  File" in said, said
    assert ("raise error" if where == "element" else "assert epoch == 1") in said and "shares.py" not in said, said


@pytest.mark.parametrize("elements, text", [
    ([{"x": 1}, {"x": 1}, {"x": 1}, {"x": 1}, {"x": 1.5}], r"component \['x'\] is float64 with 0 axes, but .* int64 with 0 axes"),
    ([{"x": 1}] * 4 + [{"y": 1}], r"the element is a dict of 'y', but in the first element it was a dict of 'x'"),
    ([np.zeros(3)] * 4 + [np.zeros([3, 3])], "the element is float64 with 2 axes, but .* float64 with 1 axes"),
    ([1, 2, 3, 4, object()], "the element is a object, which can't be sent"),
])  # fmt: skip
def test_elements_of_other_kinds(hvdata, comm, elements, text):
    loader = loads(hvdata, lambda: elements, remainder="drop")
    raises_everywhere(comm, lambda: list(loader), TypeError, text)


class LiesAboutItsLength(list):
    def __len__(self):
        return 9


@pytest.mark.parametrize("n, text", [(8, "yielded 8 elements"), (10, "yielded element 10")])
def test_a_wrong_length(hvdata, comm, n, text):
    loader = loads(hvdata, lambda: LiesAboutItsLength(range(n)), remainder="pad")
    raises_everywhere(comm, lambda: list(loader), ValueError, r"the source's len\(\) is 9, but it " + text)


@pytest.mark.parametrize("arguments, kind, text", [
    (dict(source=[np.zeros(3)], batch="rows"), ValueError, "batch='rows' is not known"),
    (dict(source=[np.zeros(3)], batch="global", to="jax"), ValueError, "to='jax' is not known"),
    (dict(source=[np.zeros(3)], batch="global", to="tf"), ValueError, "to='tf' .*distribute_dataset.* a tf.data.Dataset"),
    (dict(source=None, batch="global"), TypeError, "source is None on a reader.*Pass a source"),
    (dict(source=3, batch="global"), TypeError, "source is a int, not an iterable of batches"),
    (dict(source={"x": 1}, batch="global"), TypeError, "source is a dict, not an iterable of batches"),
    (dict(source=[3], batch="global"), ValueError, "cuts every component along axis 0, but the element is a scalar"),
    (dict(source=[], batch="global"), ValueError, r"the source in loader\(\) has no elements"),
    (dict(source=[{1, 2}], batch="per_rank"), TypeError, "a set, which can't be sent to another rank"),
    (dict(source=[np.zeros(3)], batch="global", weigh=lambda x: None), ValueError, "weigh= returned a NoneType instead of numbers"),
    (dict(source=lambda: 3, batch="global"), TypeError, "source is a int, not an iterable of batches"),
    (dict(source=lambda a, b: [], batch="global"), TypeError, "needs the arguments a, b"),
])  # fmt: skip
def test_wrong_arguments(hvdata, comm, arguments, kind, text):
    raises_everywhere(comm, lambda: hvdata.loader(**arguments), kind, text)


def test_the_ranks_disagree(hvdata, comm, several):
    call = lambda: hvdata.loader([np.zeros(4)], batch="global" if hvdata.is_reader() else "per_rank", name="t")
    raises_everywhere(comm, call, ValueError, r"the ranks disagree in loader\(name='t'\)")
