# SPDX-License-Identifier: Apache-2.0
"""The training profiles of MLPerf Storage for H100 accelerators.

The numbers come from configs/dlio/workload/{cosmoflow,resnet50,unet3d}_h100.yaml in github.com/mlcommons/storage,
commit caa90c9. github.com/argonne-lcf/dlio_benchmark, commit e1919d7, has the same. Values that they lack are DLIO's
defaults. Two choices are ours: `files`, which limits the space; all records of a profile have the mean length.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Profile:
    name: str
    rows: int  # batch_size: samples in one rank's batch
    read: int  # record_length_bytes: bytes of a sample in its file
    delivered: int  # record_length_bytes_resize: bytes of a sample for the accelerator
    seconds: float  # computation_time of a step
    format: str
    samples: int  # num_samples_per_file
    files: int
    read_threads: int
    computation_threads: int
    shuffle: int  # shuffle_size; 0: sample_shuffle is off
    mark: float  # metric.au: the lowest accelerator utilisation that passes

    @property
    def batch(self) -> int:
        """Bytes of one rank's batch."""
        return self.rows * self.delivered

    def gigabytes(self, ranks: int) -> tuple[float, float]:
        """GB per second that accelerators without waits would need, (read, delivered)."""
        a_second = ranks * self.rows / self.seconds / 1e9
        return a_second * self.read, a_second * self.delivered

    def shrunk(self, times: int) -> Profile:
        """The profile at the same rates, with samples and computation `times` times smaller."""
        return dataclasses.replace(
            self, read=self.read // times, delivered=self.delivered // times, seconds=self.seconds / times
        )


PREFETCH = 2  # DLIO's prefetch_size: batches at the end of the pipeline

PROFILES = {
    "cosmoflow": Profile(
        "CosmoFlow",
        rows=1,
        read=2_828_486,
        delivered=2_828_486,
        seconds=0.0035,
        format="tfrecord",
        samples=1,
        files=256,
        read_threads=4,
        computation_threads=1,
        shuffle=2,
        mark=0.70,
    ),
    "resnet50": Profile(
        "ResNet-50",
        rows=400,
        read=114_660,
        delivered=150_528,
        seconds=0.224,
        format="tfrecord",
        samples=1251,
        files=8,
        read_threads=8,
        computation_threads=8,
        shuffle=0,
        mark=0.90,
    ),
    "unet3d": Profile(
        "3D U-Net",
        rows=7,
        read=146_600_628,
        delivered=2_097_152,
        seconds=0.323,
        format="npz",
        samples=1,
        files=7,
        read_threads=4,
        computation_threads=1,
        shuffle=0,
        mark=0.90,
    ),
}
