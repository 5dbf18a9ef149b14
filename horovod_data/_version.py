# SPDX-License-Identifier: Apache-2.0
"""The version: the one place that states it. pyproject.toml and CMakeLists.txt read this file."""

__version__ = "0.2.0"
