# SPDX-License-Identifier: Apache-2.0
"""What the ranks of the benchmarks' jobs run: one module a job, started by launch.run()."""
