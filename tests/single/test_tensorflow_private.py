# SPDX-License-Identifier: Apache-2.0
"""Only one module uses TensorFlow's private names, which may change."""

import re
import subprocess
import sys
from pathlib import Path

import horovod_data

PRIVATE = re.compile(
    r"tensorflow\.python|tf\.__internal__|\._(?:variant_tensor|inputs|functions|as_serialized_graph|py_funcs\w+)\b"
    r"|_(?:iterator_resource|next_internal|do_call|call_tf_sessionrun|apply_debug_options|serialize_to_tensors)\b|\._dataset\b"
)


def test_one_module_knows_them():
    package = Path(horovod_data.__file__).parent
    users = {path.name for path in package.rglob("*.py") if PRIVATE.search(path.read_text())}
    assert users == {"tensorflow_private.py"}


GRAPHS = """
import tensorflow as tf
tf.compat.v1.disable_v2_behavior()
from horovod_data.native import tensorflow_private as private
from tensorflow.python.eager import context
before = tf.config.get_visible_devices()
runtime, hidden = context.context(), []
hide = runtime.set_visible_devices
runtime.set_visible_devices = lambda *given: (hidden.append((given, runtime._context_handle)), hide(*given))
private.begin_without_gpus()
assert tf.config.get_visible_devices() == before  # for sessions without a config
assert hidden == [(([], "GPU"), None)] and runtime._context_handle is not None  # the runtime saw no GPU when it began
private.begin_without_gpus()
"""


def test_an_eager_context_without_gpus_leaves_what_is_visible():
    done = subprocess.run([sys.executable, "-c", GRAPHS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
