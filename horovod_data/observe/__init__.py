# SPDX-License-Identifier: Apache-2.0
"""What a job's times say: report() and the progress lines."""
