# SPDX-License-Identifier: Apache-2.0
"""Sets of files that all ranks of a job save together: a set is whole, or it is not used."""
