# SPDX-License-Identifier: Apache-2.0
"""Every Python of a test's job runs this at its start. A suite of a thousand ranks spends most of its time in imports.

It imports TensorFlow and Keras without the garbage collector, which would visit hundreds of thousands of new objects
again and again. It also hides their optional imports, Keras from TensorFlow and SciPy from both. Programs that use
these import them.
"""

import gc
import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder

WITHOUT = {"tensorflow": {"keras", "tf_keras", "scipy"}, "keras": {"scipy"}}


class _Uncollected(MetaPathFinder, Loader):
    def __init__(self, name):
        self.name = name

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        late = WITHOUT[self.name] - set(sys.modules)
        if os.environ.get("KERAS_BACKEND") == "jax":  # JAX needs SciPy
            late -= {"scipy"}
        collects = gc.isenabled()
        gc.disable()
        sys.modules.update(dict.fromkeys(late))
        try:
            self.loader.exec_module(module)
        finally:
            for name in late:
                sys.modules.pop(name, None)
            gc.freeze()
            if collects:
                gc.enable()


sys.meta_path[:0] = map(_Uncollected, WITHOUT)
