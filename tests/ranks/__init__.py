# SPDX-License-Identifier: Apache-2.0
"""One `pytest tests` for code that runs on many ranks.

Every test in a folder named mpi/ becomes one item per world size: test_x[np=1] .. test_x[np=4]. `outer` is the plugin
of the pytest that the user starts: for each world it launches one `mpirun -np N` job, because importing TensorFlow
takes longer than most tests. `child` is the plugin of the pytest on each rank: it runs the tests that it is
told to, one at a time, and writes down how each went. `launch` starts and ends jobs; `exchange` is what the two sides say to
each other, through files, so that a rank that hangs in MPI can't take the report with it.
"""
