# SPDX-License-Identifier: Apache-2.0
"""audit(): which rank saw which row, of any loader. The modules, and what each has:

    rows       the normal form of an element: columns of rows. Pure
    keys       the key of each row, 16 bytes. Pure
    record     what this rank has seen in an epoch, and the thread that makes reports
    exchange   an all-to-all among the trainers
    counting   how often each row was seen, and by which ranks. Pure
    reference  the expected rows
    settle     the report of an epoch, which all ranks make together
    report     the report and its text. Pure
    picture    rows over ranks, for a terminal and as a PNG
    iterables  wraps Python's iterables
    sequences  wraps Keras' sequences
    datasets   wraps tf.data's datasets
    audit      audit() itself, and the agreement of the ranks on its arguments
    keras_fit  horovod-data-run --audit: wraps the data of Model.fit

The wrappers give each element to the record, which keeps its keys. At the end of an epoch, a thread exchanges the keys
and makes the report.
"""
