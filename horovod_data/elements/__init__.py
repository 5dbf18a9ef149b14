# SPDX-License-Identifier: Apache-2.0
"""Elements without TensorFlow: their nests, their specs, and how arrays become columns and columns become arrays."""
