# SPDX-License-Identifier: Apache-2.0
"""Adapters to frameworks with data pipelines of their own. None is imported unless it is asked for."""
