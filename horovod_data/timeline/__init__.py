# SPDX-License-Identifier: Apache-2.0
"""Merges timelines into one: python -m horovod_data.timeline merge OURS HOROVODS -o OUT

OURS is the file that HOROVOD_DATA_TIMELINE or `horovod-data-run --timeline-filename` names. For a killed job, OURS are
the parts that its processes have left. HOROVODS is the file that HOROVOD_TIMELINE names (docs/timeline.md). Each file
counts microseconds from its own start, and gives the time of this start by the clock of rank 0's host. This package
needs neither TensorFlow nor MPI.
"""

from .files import Timeline, merge, read, read_parts

__all__ = ["Timeline", "merge", "read", "read_parts"]
