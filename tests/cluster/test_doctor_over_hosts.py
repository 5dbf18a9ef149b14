# SPDX-License-Identifier: Apache-2.0
"""The doctor's self-test over several hosts: ssh, like a real one, hands on none of the doctor's environment."""

import json
import subprocess
import sys

import pytest
from bed import Bed
from over_hosts import assert_nothing_left
from ranks import launch


@pytest.mark.slow
@pytest.mark.limit(180)
def test_the_self_test_over_hosts(tmp_path):
    with Bed(2) as bed:
        # PYTHONPATH is for tests of a checkout: an installed horovod_data is found without.
        launcher = f"mpirun -H {','.join(f'{name}:2' for name in bed.names)} -x PYTHONPATH"
        command = [*bed.enter(), sys.executable, "-m", "horovod_data.doctor", "--json", "--np", "3", "--seconds", "0.4",
                   "--launcher", launcher]  # fmt: skip
        ran = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=150, stdin=subprocess.DEVNULL,
                             env={"PYTHONPATH": "", **launch.environment(tmp_path, 0, bed.environment)})  # fmt: skip
        assert_nothing_left(bed)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        found = {one["name"]: one for one in json.loads(ran.stdout)["findings"]}
        for payload in ("arena", "message"):
            section = f"self-test, {payload}"
            started = found[f"{section}.start"]["value"]
            assert started.startswith("3 ranks on 2 hosts (") and all(name in started for name in bed.names)
            assert "every rank got its own" in found[f"{section}.delivery"]["value"]
        # Dealt to the hosts in turn: rank 2 shares rank 0's.
        assert found["self-test, arena.together"]["value"].endswith("(arena and message)")
        assert found["self-test, message.together"]["value"].endswith("(message)")
