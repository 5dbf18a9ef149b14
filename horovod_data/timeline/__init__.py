# SPDX-License-Identifier: Apache-2.0
"""Puts timelines into one: python -m horovod_data.timeline merge OURS HOROVODS -o OUT

OURS is the file that HOROVOD_DATA_TIMELINE or `horovod-data-run --timeline-filename` names, or what a killed job has left of it: a
part of each process. HOROVODS is the file that HOROVOD_TIMELINE names (docs/timeline.md). Both count microseconds from a moment of
their own, and say when that was by the clock of rank 0's host. Neither TensorFlow nor MPI is needed.
"""

from .files import Timeline, merge, read, read_parts

__all__ = ["Timeline", "merge", "read", "read_parts"]
