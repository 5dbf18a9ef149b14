# SPDX-License-Identifier: Apache-2.0
"""audit(): which rank saw which row, of any loader.

- `audit` is called by the program, and `keras_fit` by horovod-data-run --audit. They wrap the loader: `iterables`,
  `datasets`.
- The wrapper gives each element to the `record`, which keeps the keys of its rows (`rows`, `keys`).
- At the end of an epoch a thread of the record sends each key to one rank (`exchange`), which compares the keys with
  the `reference` (`counting`). All ranks make the `report` together (`settle`).
"""
