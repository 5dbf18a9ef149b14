# SPDX-License-Identifier: Apache-2.0
"""The tensors that scatter() and gather() take, checked, and the error of a second gradient."""

from __future__ import annotations

from typing import Any, NoReturn, Optional

import tensorflow as tf

from ..errors import explained, text_of
from ..job import state


def tensor_of(x: Any, dtype: Optional[tf.DType], verb: str, job: state.Job) -> tf.Tensor:
    """`x` as a tensor. `verb` is what the call does with it.

    Raises:
      TypeError, ValueError: no tensor can be made of it, or the tensor can't be sent.
    """
    try:
        value = tf.convert_to_tensor(x, dtype=dtype)
    except Exception as error:  # of any class: tensors of PyTorch with a gradient raise RuntimeError
        kind = TypeError if isinstance(error, TypeError) else ValueError  # other classes may take more than a text
        raise explained(
            kind,
            f"x can't be made a tensor{f' of {dtype.name}' if dtype else ''}: {text_of(error)}",
            f"Pass a tensor; of a ragged or sparse one {verb} the tensors that it is made of",
            job.where,
        ) from None
    check_sendable(f"x is a tensor of {value.dtype.name}", value.dtype, job)
    return value


def check_sendable(what: str, dtype: tf.DType, job: state.Job) -> None:
    """Raises TypeError where tensors of this dtype can't be sent. `what` begins the sentence."""
    if dtype in (tf.resource, tf.variant):
        raise explained(
            TypeError,
            f"{what}, which can't be sent to another rank",
            "Pass a tensor of numbers, bools or strings",
            job.where,
        )


def no_second_gradient(call: str, tensor: str) -> NoReturn:
    """Raises LookupError. `tensor` is the one from which a program can compute what needs a second gradient."""
    raise explained(
        LookupError,
        f"{call}() has no second gradient: a gradient of its gradient was asked for",
        f"Compute what needs it (a penalty on gradients, say) from the tensor that {tensor}",
    )
