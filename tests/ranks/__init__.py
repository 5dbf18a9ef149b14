# SPDX-License-Identifier: Apache-2.0
"""One `pytest tests` for code that runs on many ranks.

Every test in a folder named mpi/ becomes one item per world: test_x[np=1], test_x[np=2,message] and so on (`worlds`).

- `outer` is the plugin of the pytest that the user starts. It launches one `mpirun -np N` job for each world (`group`,
  `launch`), because the import of TensorFlow takes longer than most tests.
- `child` is the plugin of the pytest on each rank. It runs the tests of the job's plan one at a time and records their
  outcomes.
- `exchange`: the two sides communicate through files. So a rank that hangs in MPI can't take the report with it.
- `selection`: the two tiers, commit and everything. `workers`: two workers of pytest-xdist share the tests.
"""
