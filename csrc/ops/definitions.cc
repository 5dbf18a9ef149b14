// SPDX-License-Identifier: Apache-2.0
// The TensorFlow ops of this library, as TensorFlow sees them.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

using tensorflow::shape_inference::InferenceContext;

// A source dataset of this rank's shares of a channel. Every rank has the same op, also the reader. The request for the
// first element opens an epoch. Values that differ from channel to channel are inputs and not attributes, because
// TensorFlow keeps a kernel for ever for each set of attributes. `session`: the number of the run that made the
// channel. An op of another run (a saved graph) gives an error. `steps`: the cardinality.
REGISTER_OP("HorovodDataReceiver")
    .Input("channel: int64")
    .Input("session: int64")
    .Input("channel_name: string")
    .Input("steps: int64")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Output("handle: variant")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

// Runs one epoch of a channel on its reader: iterates over the input dataset once, and deals its elements to all
// trainers. Returns when every trainer has ended or closed the epoch. Errors of the input go to the trainers. `epoch`:
// from 1. `anew`: the dataset was made for this epoch, so no earlier epoch has changed the order of its shuffles.
// `divides`: several readers have this dataset, and each deals its part of the elements (channel/stream_comparer.h).
// `varies`: each reader's elements have other random numbers, so only their number is compared.
REGISTER_OP("HorovodDataDeal")
    .Input("input_dataset: variant")
    .Input("channel: int64")
    .Input("epoch: int64")
    .Attr("anew: bool = false")
    .Attr("divides: bool = false")
    .Attr("varies: bool = false")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// Every rank gets its rows of the root's tensor. `splits`: on the root, the number of rows of each rank; a scalar: the
// rows are divided as evenly as possible. `label`: the call's name, as in meeting/exchange.h. `order`: a resource that
// ops without a name share, so that a tf.function runs them in the order of the program. It is never read. `refused`:
// if not empty, the reason why this rank can't take part. The call counts nevertheless, and its op fails with this
// text. If the root is refused, the op fails on all ranks. `call`: the label, and the call's number.
REGISTER_OP("HorovodDataScatter")
    .Input("value: T")
    .Input("splits: int64")
    .Input("label: string")
    .Input("order: N * resource")
    .Attr("T: type")
    .Attr("N: int >= 0")
    .Attr("root: int >= 0")
    .Attr("refused: string = ''")
    .Output("part: T")
    .Output("call: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->UnknownShape());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    });

// The root gets every rank's rows, in rank order. Other ranks get a tensor without rows. The parts of all ranks agree
// in dtype and in all axes but the first. `label`, `order`, `call`: as in HorovodDataScatter. `refused`: as there, but
// the op fails on all ranks. `rows`: on the root, the rows of each rank.
REGISTER_OP("HorovodDataGather")
    .Input("part: T")
    .Input("label: string")
    .Input("order: N * resource")
    .Attr("T: type")
    .Attr("N: int >= 0")
    .Attr("root: int >= 0")
    .Attr("refused: string = ''")
    .Output("value: T")
    .Output("rows: int64")
    .Output("call: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle part = c->input(0), value = c->UnknownShape();
      if (c->RankKnown(part) && c->Rank(part) > 0) TF_RETURN_IF_ERROR(c->ReplaceDim(part, 0, c->UnknownDim(), &value));
      c->set_output(0, value);
      c->set_output(1, c->Vector(c->UnknownDim()));
      c->set_output(2, c->Scalar());
      return absl::OkStatus();
    });
