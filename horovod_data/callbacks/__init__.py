# SPDX-License-Identifier: Apache-2.0
"""Callbacks for Keras' fit(): scalars of the delivery, and metrics over the rows of all ranks."""

from .delivery import DeliveryCallback, DeliveryScalars
from .metric_average import MetricAverage

__all__ = ["DeliveryCallback", "DeliveryScalars", "MetricAverage"]
