# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom: what follows from the times of all processes (verdict.py), and both as text (report.py)."""
