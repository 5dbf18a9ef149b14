# SPDX-License-Identifier: Apache-2.0
"""shard="auto": each reader reads its own part of a common dataset."""
