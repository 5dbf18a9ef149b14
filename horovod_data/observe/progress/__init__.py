# SPDX-License-Identifier: Apache-2.0
"""How far the epochs are, shown while they run: what is known of them (epochs.py), a thread that looks (watch.py), and the
lines or bars that it keeps on stderr (display.py)."""
