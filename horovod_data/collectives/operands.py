# SPDX-License-Identifier: Apache-2.0
"""Makes and checks the tensors for scatter() and gather(). Has the error of a second gradient."""

from __future__ import annotations

from typing import Any, NoReturn, Optional

import tensorflow as tf

from ..errors import explained, text_of
from ..job import state


def tensor_of(x: Any, dtype: Optional[tf.DType], verb: str, job: state.Job) -> tf.Tensor:
    """`x` as a tensor. `verb` names what the call does with it, for errors.

    Raises:
      TypeError, ValueError: `x` can't become a tensor, or the tensor can't be sent.
    """
    try:
        value = tf.convert_to_tensor(x, dtype=dtype)
    except Exception as error:  # of any class: tensors of PyTorch with a gradient raise RuntimeError
        # the constructors of other classes may need more than a text
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise explained(
            kind,
            f"x can't be made a tensor{f' of {dtype.name}' if dtype else ''}: {text_of(error)}",
            f"Pass a tensor; of a ragged or sparse one {verb} the tensors that it is made of",
            job.where,
        ) from None
    check_sendable(f"x is a tensor of {value.dtype.name}", value.dtype, job)
    return value


def check_sendable(what: str, dtype: tf.DType, job: state.Job) -> None:
    """Raises TypeError if tensors of this dtype can't be sent. `what` is the beginning of the error text."""
    if dtype in (tf.resource, tf.variant):
        raise explained(
            TypeError,
            f"{what}, which can't be sent to another rank",
            "Pass a tensor of numbers, bools or strings",
            job.where,
        )


def no_second_gradient(call: str, tensor: str) -> NoReturn:
    """Raises LookupError. `tensor` names the tensor from which a program can compute what needs a second gradient."""
    raise explained(
        LookupError,
        f"{call}() has no second gradient: a gradient of its gradient was asked for",
        f"Compute what needs it (a penalty on gradients, say) from the tensor that {tensor}",
    )
