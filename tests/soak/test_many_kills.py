# SPDX-License-Identifier: Apache-2.0
"""20 kills of one training, at random steps and in the middle of writes.

The training runs on 4 and 3 ranks in turn, or under the launcher. tests/cluster/test_restarts_over_hosts.py also cuts
off hosts.
"""

import pytest
from killing import LAUNCHED, drawn, same_after_all, train_under_the_launcher, train_with_kills

pytestmark = [pytest.mark.slow, pytest.mark.limit(1500)]


@pytest.mark.parametrize("readers", [0, 1])
def test_many_kills(tmp_path, readers):
    whole = train_with_kills(tmp_path / "whole", [])
    kills = drawn(20, 6)
    same_after_all(train_with_kills(tmp_path / "killed", kills, readers), whole, kills)


def test_many_kills_under_the_launcher(tmp_path):
    """If a rank is stopped, all ranks wait in a collective of MPI. Only the launcher can find this out."""
    whole = train_with_kills(tmp_path / "whole", [])
    kills = drawn(20, 6, LAUNCHED, (4, 4))
    same_after_all(train_under_the_launcher(tmp_path / "killed", kills), whole, kills)
