# SPDX-License-Identifier: Apache-2.0
"""report(): verdict.py derives from the times of all processes which ranks wait for what. report.py makes the text."""
