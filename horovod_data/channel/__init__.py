# SPDX-License-Identifier: Apache-2.0
"""A distributed dataset: its arguments, what the reader runs, and what each rank receives."""
