# SPDX-License-Identifier: Apache-2.0
"""20 kills of one training, at random steps and in mid-write: on 4 and 3 ranks in turn, and under the launcher."""

import os

import pytest
from killing import LAUNCHED, SILENT_SECONDS, Trained, drawn, same, train_under_the_launcher, train_with_kills

pytestmark = [pytest.mark.slow, pytest.mark.limit(1500)]


def check(trained: Trained, whole: Trained) -> None:
    assert len(trained.begun) == 21 and max(trained.begun) >= 30, trained.begun
    if os.geteuid() == 0:  # only root can make a disk that is full
        assert "No space left on device" in trained.output, trained.output
    same(trained, whole)


@pytest.mark.parametrize("readers", [0, 1])
def test_many_kills(tmp_path, readers):
    whole = train_with_kills(tmp_path / "whole", [])
    check(train_with_kills(tmp_path / "killed", drawn(20, 7), readers), whole)


def test_many_kills_under_the_launcher(tmp_path):
    """A stopped rank waits in a collective of MPI, as the other ranks do. Only the launcher can find out."""
    whole = train_with_kills(tmp_path / "whole", [])
    kills = drawn(20, 7, LAUNCHED, (4, 4))
    trained = train_under_the_launcher(tmp_path / "killed", kills)
    check(trained, whole)
    stops = sum(kind == "stop" for kind, *_ in kills)
    assert trained.output.count(f"has given no sign of life for {SILENT_SECONDS} s") == stops, trained.output
