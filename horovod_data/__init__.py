# SPDX-License-Identifier: Apache-2.0
"""Gives every rank of a Horovod job its own batches as a tf.data.Dataset. Only the readers of the job read data.

    import horovod_data as hvdata

    hvdata.init()  # instead of hvd.init()
    dataset = hvdata.distribute_dataset(make_dataset, batch="global")
    hvdata.serve()  # a dedicated reader stays here; on trainers it does nothing
    model.fit(dataset, ...)

The first use of a name loads the C++ core, and TensorFlow if the name needs it. So the launcher starts without them,
and so do tools that look for faults in the installation. A program without TensorFlow can call init(), shutdown(),
rank(), size(), is_reader(), is_trainer(), num_readers(), stats() and report().
"""

import typing as _typing
from importlib import import_module as _import_module

from ._version import __version__

if _typing.TYPE_CHECKING:
    from . import callbacks
    from .auditing.audit import audit
    from .backup.backup import Backup
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
    "Backup",
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

_HOMES_WITHOUT_TENSORFLOW = {
    "backup.backup": ("Backup",),
    "channel.reader_thread": ("serve",),
    "elements.composites": ("Ragged", "Sparse"),
    "ending.shutdown": ("shutdown",),
    "job.roles": ("is_reader", "is_trainer", "num_readers", "rank", "size"),
    "loading.loader": ("Loader", "loader"),
    "observe.report.report": ("report",),
    "observe.stats": ("stats",),
    "start": ("init",),
}
_HOMES_WITH_TENSORFLOW = {
    "auditing.audit": ("audit",),
    "channel.distribute": ("distribute_dataset", "distribute_datasets_from_function"),
    "collectives.gather": ("gather",),
    "collectives.predict": ("predict",),
    "collectives.scatter": ("scatter",),
    "pipeline.even_batches": ("even_batches",),
}


def __getattr__(name: str) -> _typing.Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The loader comes first, because its ImportError says more than an error from inside these modules.
    loader = _import_module(".native.loader", __name__)
    if any(name in names for names in _HOMES_WITHOUT_TENSORFLOW.values()):
        loader.load_core()
        homes = _HOMES_WITHOUT_TENSORFLOW
    else:
        loader.load_ops()
        homes = _HOMES_WITH_TENSORFLOW
    if name == "callbacks":  # a module that imports Keras: load it only when it is asked for
        return _import_module(".callbacks", __name__)
    home, names = next((home, names) for home, names in homes.items() if name in names)
    module = _import_module(f".{home}", __name__)
    globals().update({each: getattr(module, each) for each in names})
    return globals()[name]


def __dir__() -> _typing.List[str]:
    return sorted({*globals(), *__all__})
