# SPDX-License-Identifier: Apache-2.0
"""One process of a Horovod job reads; every rank is given its own, disjoint batches over MPI, as a tf.data.Dataset.

    import horovod_data as hvdata

    hvdata.init()  # instead of hvd.init()
    dataset = hvdata.distribute_dataset(make_dataset, batch="global")
    hvdata.serve()  # a dedicated reader stays here; elsewhere it does nothing
    model.fit(dataset, ...)
"""

from . import loader as _loader
from . import tools as _tools
from ._version import __version__

if not _tools.starting_tool():
    _loader.load()  # first: an ImportError of ours says more than what the modules below would run into

    from .core import stats
    from .dataset import distribute_dataset, distribute_datasets_from_function
    from .roles import init, is_reader, is_trainer, num_readers, rank, shutdown, size
    from .scatter import scatter
    from .serving import serve

__all__ = [
    "__version__",
    "distribute_dataset",
    "distribute_datasets_from_function",
    "init",
    "is_reader",
    "is_trainer",
    "num_readers",
    "rank",
    "scatter",
    "serve",
    "shutdown",
    "size",
    "stats",
]
