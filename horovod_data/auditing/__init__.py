# SPDX-License-Identifier: Apache-2.0
"""audit(): who saw which row, of any loader.

    columns    a component of an element as bytes, row by row: pure
    keys       an element's rows as 16 bytes each: pure
    record     what this rank has seen in an epoch, and when the epoch is over
    exchange   an all-to-all among the trainers, made of scatters
    counting   how often each row was seen, and by whom: pure
    settle     the report of an epoch, from what all ranks have seen: collective
    report     the report, and how it reads: pure
    picture    rows over ranks, for a terminal and as a PNG
    reference  the rows that there should be
    iterables  Python's iterables, with a look at what passes
    sequences  Keras'
    datasets   tf.data's
    audit      audit() itself, and the agreement of the ranks on its arguments
    keras_fit  horovod-data-run --audit: what goes into Model.fit

Data walks one way: an element's keys go into the record; at the end of an epoch a thread exchanges them and makes the
report.
"""
