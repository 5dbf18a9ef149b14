# SPDX-License-Identifier: Apache-2.0
"""Shows how far the epochs are while they run.

epochs.py computes it, a thread reads the numbers (watch.py), and display.py writes lines or bars on stderr.
"""
