# SPDX-License-Identifier: Apache-2.0
"""The programs of the ranks in the benchmarks' jobs: one module per job, started by launch.run()."""
