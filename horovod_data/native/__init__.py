# SPDX-License-Identifier: Apache-2.0
"""The C++ library as Python sees it, and what we use of TensorFlow's private parts."""
