# SPDX-License-Identifier: Apache-2.0
"""Loads and calls the C++ library, and wraps the private parts of TensorFlow that the package uses."""
