# SPDX-License-Identifier: Apache-2.0
"""Ends a process: shutdown(), the exit status of a failure, Horovod's end, forked children, deferred signals."""
