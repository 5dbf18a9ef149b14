# SPDX-License-Identifier: Apache-2.0
"""One process of a Horovod job reads; every rank is given its own, disjoint batches over MPI, as a tf.data.Dataset.

    import horovod_data as hvdata

    hvdata.init()  # instead of hvd.init()
    dataset = hvdata.distribute_dataset(make_dataset, batch="global")
    hvdata.serve()  # a dedicated reader stays here; elsewhere it does nothing
    model.fit(dataset, ...)

TensorFlow and the C++ core are loaded when the first of these names is used: the launcher needs neither of them, and
tools that look for what is wrong must start without them.
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
    from .ending.shutdown import shutdown
    from .job.roles import is_reader, is_trainer, num_readers, rank, size
    from .observe.report.report import report
    from .observe.stats import stats
    from .start import init

__all__ = [
    "__version__",
    "audit",
    "callbacks",
    "distribute_dataset",
    "distribute_datasets_from_function",
    "gather",
    "init",
    "is_reader",
    "is_trainer",
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
    "ending.shutdown": ("shutdown",),
    "job.roles": ("is_reader", "is_trainer", "num_readers", "rank", "size"),
    "observe.report.report": ("report",),
    "observe.stats": ("stats",),
    "start": ("init",),
}


def __getattr__(name: str) -> _typing.Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # First: an ImportError of ours says more than what the modules would run into.
    _import_module(".native.loader", __name__).load()
    _import_module(".native.bindings", __name__).check()
    if name == "callbacks":  # a module, which imports Keras: only for those who want it
        return _import_module(".callbacks", __name__)
    for home, names in _HOMES.items():
        module = _import_module(f".{home}", __name__)
        globals().update({each: getattr(module, each) for each in names})
    return globals()[name]


def __dir__() -> _typing.List[str]:
    return sorted({*globals(), *__all__})
