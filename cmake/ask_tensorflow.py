# SPDX-License-Identifier: Apache-2.0
"""Prints the settings for cmake/FindTensorFlow.cmake: NAME=value lines, lists separated by ';'."""

import glob
import os

import tensorflow as tf


def library(name: str) -> str:
    """The full path of libtensorflow_<name>, whatever its version suffix; empty where TensorFlow has none (< 2.12)."""
    found = sorted(glob.glob(os.path.join(tf.sysconfig.get_lib(), f"libtensorflow_{name}.so*")))
    return found[-1] if found else ""


flags = tf.sysconfig.get_compile_flags()
standard = [flag.rpartition("+")[2] for flag in flags if "-std=" in flag]
options = [flag for flag in flags if "-std=" not in flag and not flag.startswith("-I")]

print(f"VERSION={tf.__version__}")
print(f"INCLUDE_DIR={tf.sysconfig.get_include()}")
print(f"CXX_STANDARD={standard[0] if standard else 17}")
print(f"OPTIONS={';'.join(options)}")
print(f"FRAMEWORK_LIBRARY={library('framework')}")
print(f"CC_LIBRARY={library('cc')}")
