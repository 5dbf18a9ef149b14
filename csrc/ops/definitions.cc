// SPDX-License-Identifier: Apache-2.0
// The TensorFlow ops of this library, as TensorFlow sees them.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("HorovodDataReceiver")
    .Input("channel: int64")
    .Input("session: int64")
    .Input("channel_name: string")
    .Input("steps: int64")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Output("handle: variant")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
A source dataset of this rank's shares of a channel.

Making the dataset or an iterator of it has no effect. The first element that is asked for opens an epoch. Every rank has the same
op, also the reader. What differs from channel to channel is an input and no attribute: TensorFlow keeps a kernel for ever for each
set of attributes.

channel: the channel's number, the same on all ranks.
session: the number of the run that made the channel. An op from another run (a saved graph) gives an error.
channel_name: for error texts.
steps: the cardinality: steps per epoch, or tf.data's INFINITE (-1) or UNKNOWN (-2).
handle: the dataset.
)doc");

REGISTER_OP("HorovodDataDeal")
    .Input("input_dataset: variant")
    .Input("channel: int64")
    .Input("epoch: int64")
    .Attr("anew: bool = false")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Runs one epoch of a channel on its reader: iterates over the input dataset once and deals its elements to all trainers.

Finalizes the dataset as any iterator would (options, rewriting, autotuning), unless its elements are ready-made. Runs it in an
iterator context and on a thread of its own. Returns when every trainer has ended or closed the epoch. Errors of the input go to the
trainers. The op itself fails only when it can't reach them.

input_dataset: the user's dataset, its composite tensors taken apart.
channel: the channel's number.
epoch: the epoch's number, from 1.
anew: the dataset was made for this epoch, so no earlier epoch has changed the order of its shuffles.
)doc");

REGISTER_OP("HorovodDataScatter")
    .Input("value: T")
    .Input("splits: int64")
    .Input("order: N * resource")
    .Attr("T: type")
    .Attr("N: int >= 0")
    .Attr("root: int >= 0")
    .Attr("scatter_name: string")
    .Attr("refused: string = ''")
    .Output("part: T")
    .Output("number: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->UnknownShape());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Every rank gets its rows of the root's tensor, and no others.

value: on the root, the tensor to cut along axis 0; elsewhere ignored.
splits: on the root, the number of rows of each rank; a scalar: as even as can be, the first ranks get one more.
order: a resource that ops without a name share, so that a tf.function runs them in the order of the program; never read.
root: the rank whose value is scattered.
scatter_name: the k-th scatter of a name on one rank goes with the k-th of that name on every other.
refused: if not empty, why this rank can't take part. Its call counts, and the op fails at once with this text. On the root it fails
  on all ranks.
part: this rank's rows.
number: of this scatter among those of its name.
)doc");

REGISTER_OP("HorovodDataScatterGradient")
    .Input("part: T")
    .Input("number: int64")
    .Input("shape: int64")
    .Attr("T: type")
    .Attr("root: int >= 0")
    .Attr("scatter_name: string")
    .Output("value: T")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->UnknownShape());
      return absl::OkStatus();
    })
    .Doc(R"doc(
The root gets every rank's rows, in rank order: the gradient of HorovodDataScatter.

part: the gradient of this rank's rows.
number: of the scatter.
shape: of this rank's rows. A part of another shape is an error on this rank and on the root.
root: the rank that gets the value.
scatter_name: of the scatter.
value: on the root the parts joined along axis 0; elsewhere a tensor with no rows.
)doc");

REGISTER_OP("HorovodDataGather")
    .Input("part: T")
    .Input("order: N * resource")
    .Attr("T: type")
    .Attr("N: int >= 0")
    .Attr("root: int >= 0")
    .Attr("gather_name: string")
    .Attr("refused: string = ''")
    .Output("value: T")
    .Output("rows: int64")
    .Output("number: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle part = c->input(0), value = c->UnknownShape();
      if (c->RankKnown(part) && c->Rank(part) > 0) TF_RETURN_IF_ERROR(c->ReplaceDim(part, 0, c->UnknownDim(), &value));
      c->set_output(0, value);
      c->set_output(1, c->Vector(c->UnknownDim()));
      c->set_output(2, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
The root gets every rank's rows, in rank order.

part: this rank's rows. All ranks' parts agree in dtype and in all axes but the first.
order: as of HorovodDataScatter.
root: the rank that gets the value.
gather_name: the k-th gather of a name on one rank goes with the k-th of that name on every other.
refused: if not empty, why this rank can't take part. Its call counts, and fails with this text on all ranks.
value: on the root the parts joined along axis 0; elsewhere a tensor with no rows.
rows: on the root, the rows of each rank; elsewhere none.
number: of this gather among those of its name.
)doc");

REGISTER_OP("HorovodDataGatherGradient")
    .Input("gradient: T")
    .Input("rows: int64")
    .Input("number: int64")
    .Input("shape: int64")
    .Attr("T: type")
    .Attr("root: int >= 0")
    .Attr("gather_name: string")
    .Output("part: T")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->UnknownShape());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Every rank gets the rows of the root's gradient that belong to its own: the gradient of HorovodDataGather.

gradient: on the root, of the value; elsewhere ignored.
rows, number: of the gather.
shape: of this rank's rows. A gradient of other rows is an error on every rank.
root, gather_name: of the gather; the name says that it is a gradient.
part: this rank's rows.
)doc");
