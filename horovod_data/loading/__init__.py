# SPDX-License-Identifier: Apache-2.0
"""loader(): a rank's batches as arrays or torch tensors, without TensorFlow."""
