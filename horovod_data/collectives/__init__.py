# SPDX-License-Identifier: Apache-2.0
"""scatter(), gather() and predict()."""
