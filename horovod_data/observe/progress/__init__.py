# SPDX-License-Identifier: Apache-2.0
"""Shows how far the epochs are while they run.

A thread reads the numbers (watch.py), epochs.py computes the progress, and display.py writes lines on stderr.
"""
