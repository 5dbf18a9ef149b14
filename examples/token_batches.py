# SPDX-License-Identifier: Apache-2.0
"""Sequences of very different lengths: even batches of tokens for all ranks, with the gradient of one process.

    mpirun -np 4 python examples/token_batches.py

Lengths are log-normal. Each rank gets a batch of up to 2048 tokens, so batches have different numbers of rows. In each
step all ranks have nearly the same work (even_batches), and each row the weight of its tokens (weigh). At the end rank
0 trains alone on the same steps, and compares the loss of every step.
"""

import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import horovod_data as hvdata

SEQUENCES, LETTERS, WIDTH, TOKENS, EPOCHS, RATE = 1200, 30, 16, 2048, 2, 1.0


def sequences():
    """Random walks over the letters: the next letter is near the last one."""
    random = np.random.default_rng(5)
    for length in np.clip(random.lognormal(np.log(40), 1.0, SEQUENCES), 2, 1000).astype(int):
        yield np.cumsum(random.integers(0, 3, length)).astype(np.int32) % LETTERS, length


def batches(ranks: int) -> tf.data.Dataset:
    spec = (tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32))
    rows = tf.data.Dataset.from_generator(sequences, output_signature=spec)
    return rows.apply(hvdata.even_batches(lambda letters, length: length, ranks=ranks, window=600, max_cost=TOKENS))


def predicted(letters, length):
    """The tokens of each row that the model predicts: all but the first."""
    return length - 1


class Model(tf.Module):
    """Predicts the next letter from the last one, and from the mean of all letters before."""

    def __init__(self):
        random = tf.random.Generator.from_seed(1)
        self.letters = tf.Variable(random.normal([LETTERS, WIDTH]))
        self.out = tf.Variable(0.1 * random.normal([2 * WIDTH, LETTERS]))

    def losses(self, letters, length):
        """The mean loss of each row's predicted tokens."""
        seen = tf.gather(self.letters, letters[:, :-1])
        steps = tf.range(1, tf.shape(seen)[1] + 1, dtype=tf.float32)
        state = tf.concat([seen, tf.cumsum(seen, 1) / steps[:, None]], -1)
        logits = tf.tensordot(tf.tanh(state), self.out, 1)
        real = tf.sequence_mask(length - 1, tf.shape(seen)[1], tf.float32)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(letters[:, 1:], logits) * real
        return tf.math.divide_no_nan(tf.reduce_sum(loss, 1), tf.reduce_sum(real, 1))


hvdata.init()
dataset = hvdata.distribute_dataset(
    lambda: batches(hvdata.size()), batch="per_rank", remainder="pad", weigh=predicted, name="train"
)
hvdata.serve()
model = Model()


@tf.function(reduce_retracing=True)
def train_step(letters, length, weight):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(weight * model.losses(letters, length))
    tape = hvd.DistributedGradientTape(tape)  # the mean over the ranks
    variables = list(model.trainable_variables)
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        variable.assign_sub(RATE * tf.convert_to_tensor(gradient))
    return hvd.allreduce(loss)


losses, work = [], []
for epoch in range(EPOCHS):
    for letters, length, weight in dataset:
        losses.append(train_step(letters, length, weight).numpy())
        work.append(int(tf.size(letters)))
works = np.array(hvd.allgather_object(work))

if hvd.rank() == 0:
    alone, steps = Model(), 0
    for epoch in range(EPOCHS):
        shares = list(batches(hvd.size()))
        for first in range(0, len(shares), hvd.size()):
            step = shares[first : first + hvd.size()]
            tokens = float(sum(tf.reduce_sum(predicted(*share)) for share in step))
            with tf.GradientTape() as tape:
                sums = [tf.reduce_sum(tf.cast(predicted(*share), tf.float32) * alone.losses(*share)) for share in step]
                loss = tf.add_n(sums) / tokens
            variables = list(alone.trainable_variables)
            for variable, gradient in zip(variables, tape.gradient(loss, variables)):
                variable.assign_sub(RATE * tf.convert_to_tensor(gradient))
            difference = abs(float(loss) - losses[steps])
            if difference > 1e-5:
                sys.exit(f"step {steps}: the loss is {losses[steps]} on {hvd.size()} ranks, {loss} in one process")
            steps += 1
    if steps != len(losses):
        sys.exit(f"{hvd.size()} ranks made {len(losses)} steps, one process {steps}")
    uneven = np.sum(works.max(0)) / np.sum(works.mean(0))
    print(
        f"{hvd.size()} ranks made {steps} steps; loss {losses[0]:.3f} to {losses[-1]:.3f}, at each step as in one process"
    )
    print(f"the rank with the most tokens has {uneven:.3f} times the mean of its step")
