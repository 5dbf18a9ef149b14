# SPDX-License-Identifier: Apache-2.0
"""20 kills of one training, at random steps and in mid-write, on 4 and 3 ranks in turn."""

import pytest
from killing import drawn, same, train_with_kills


@pytest.mark.slow
@pytest.mark.limit(1200)
@pytest.mark.parametrize("readers", [0, 1])
def test_many_kills(tmp_path, readers):
    whole = train_with_kills(tmp_path / "whole", [])
    trained = train_with_kills(tmp_path / "killed", drawn(20, seed=7), readers)
    assert len(trained.begun) == 21 and max(trained.begun) >= 30, trained.begun
    same(trained, whole)
