# SPDX-License-Identifier: Apache-2.0
"""The job: its settings and layout, the checks of its launch, the first exchange of its processes, and its state in a
process."""
