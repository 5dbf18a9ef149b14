# SPDX-License-Identifier: Apache-2.0
"""Adapters to frameworks with their own data pipelines. An adapter is only imported when the program imports it."""
