# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod_data.launcher` is horovod-data-run."""

import sys

from .main import main

sys.exit(main())
