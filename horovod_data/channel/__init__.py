# SPDX-License-Identifier: Apache-2.0
"""A distributed dataset: its options, the agreement of all ranks, the reader's side and the trainer's side."""
