# SPDX-License-Identifier: Apache-2.0
"""Callbacks for Keras' fit(): scalars of the delivery, metrics over the rows of all ranks, and backups."""

from .backup import BackupAndRestore
from .delivery import DeliveryCallback, DeliveryScalars
from .metric_average import MetricAverage

__all__ = ["BackupAndRestore", "DeliveryCallback", "DeliveryScalars", "MetricAverage"]
