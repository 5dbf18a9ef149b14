# SPDX-License-Identifier: Apache-2.0
"""Makes `python -m horovod_data.launcher` the same as horovod-data-run."""

import sys

from .main import main

sys.exit(main())
