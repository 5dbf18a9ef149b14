# SPDX-License-Identifier: Apache-2.0
"""What every Python of a test's job begins with: imports TensorFlow and Keras without the garbage collector, which otherwise
goes over hundreds of thousands of objects time and again while they are made, and once more at exit. And without what they
import only if it is there, so that those import it that use it: TensorFlow Keras (`tf.keras`), and both SciPy. A suite that
starts a thousand ranks spends most of its time there."""

import gc
import importlib.util
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
