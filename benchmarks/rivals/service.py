# SPDX-License-Identifier: Apache-2.0
import tensorflow as tf
from ranks.setting import READER

NAME, KIND, MOVES = "tf.data service", "rival", True
CUTS = False
ABOUT = "a dispatcher and a worker in the reader's process, one job shared by all ranks (dynamic sharding, gRPC)"


def steps(job, batch):
    service = tf.data.experimental.service
    address = None
    if job.reads:
        dispatcher = service.DispatchServer()
        address = dispatcher.target.split("://")[1]
        worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    address = job.comm.bcast(address, root=READER)
    dataset = batch.own().apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.DYNAMIC,
            service=f"grpc://{address}",
            job_name="delivery",
            data_transfer_protocol="grpc",
        )
    )
    try:
        yield from dataset
    finally:
        if job.reads:
            worker._stop()
            dispatcher._stop()
