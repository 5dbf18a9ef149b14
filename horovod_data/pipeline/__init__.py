# SPDX-License-Identifier: Apache-2.0
"""Stages for the pipeline of a reader."""
