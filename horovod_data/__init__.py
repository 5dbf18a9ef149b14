# SPDX-License-Identifier: Apache-2.0
"""Gives every rank of a Horovod job its own batches as a tf.data.Dataset. Only the readers of the job read data.

    import horovod_data as hvdata

    hvdata.init()  # instead of hvd.init()
    dataset = hvdata.distribute_dataset(make_dataset, batch="global")
    hvdata.serve()  # a dedicated reader stays here; on trainers it does nothing
    model.fit(dataset, ...)

The first use of a name loads TensorFlow and the C++ core. So the launcher starts without them, and so do tools that
look for faults in the installation.
"""

import typing as _typing
from importlib import import_module as _import_module

from ._version import __version__

if _typing.TYPE_CHECKING:
    from . import callbacks
    from .auditing.audit import audit
    from .channel.distribute import distribute_dataset, distribute_datasets_from_function
    from .channel.reader_thread import serve
    from .collectives.gather import gather
    from .collectives.predict import predict
    from .collectives.scatter import scatter
    from .elements.composites import Ragged, Sparse
    from .ending.shutdown import shutdown
    from .job.roles import is_reader, is_trainer, num_readers, rank, size
    from .loading.loader import Loader, loader
    from .observe.report.report import report
    from .observe.stats import stats
    from .pipeline.even_batches import even_batches
    from .start import init

__all__ = [
    "Loader",
    "Ragged",
    "Sparse",
    "__version__",
    "audit",
    "callbacks",
    "distribute_dataset",
    "distribute_datasets_from_function",
    "even_batches",
    "gather",
    "init",
    "is_reader",
    "is_trainer",
    "loader",
    "num_readers",
    "predict",
    "rank",
    "report",
    "scatter",
    "serve",
    "shutdown",
    "size",
    "stats",
]

_HOMES = {
    "auditing.audit": ("audit",),
    "channel.distribute": ("distribute_dataset", "distribute_datasets_from_function"),
    "channel.reader_thread": ("serve",),
    "collectives.gather": ("gather",),
    "collectives.predict": ("predict",),
    "collectives.scatter": ("scatter",),
    "elements.composites": ("Ragged", "Sparse"),
    "ending.shutdown": ("shutdown",),
    "job.roles": ("is_reader", "is_trainer", "num_readers", "rank", "size"),
    "loading.loader": ("Loader", "loader"),
    "observe.report.report": ("report",),
    "observe.stats": ("stats",),
    "pipeline.even_batches": ("even_batches",),
    "start": ("init",),
}


def __getattr__(name: str) -> _typing.Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # First: our ImportError says more than an error from inside these modules.
    _import_module(".native.loader", __name__).load()
    if name == "callbacks":  # a module that imports Keras: load it only when it is asked for
        return _import_module(".callbacks", __name__)
    for home, names in _HOMES.items():
        module = _import_module(f".{home}", __name__)
        globals().update({each: getattr(module, each) for each in names})
    return globals()[name]


def __dir__() -> _typing.List[str]:
    return sorted({*globals(), *__all__})
