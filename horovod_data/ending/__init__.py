# SPDX-License-Identifier: Apache-2.0
"""How a process, a fork, and a process's part in the job end."""
