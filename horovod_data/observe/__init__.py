# SPDX-License-Identifier: Apache-2.0
"""Shows where a job's time goes: stats(), report() and the progress lines."""
