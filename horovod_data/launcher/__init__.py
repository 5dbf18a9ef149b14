# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run: starts the processes of a job under Open MPI or MPICH, also dedicated readers. The modules:

    options      parses the command line, with horovodrun's options
    hosts        finds hosts and slots, in options and host files, or of Slurm, PBS, LSF, Kubernetes' MPI operator
    arrangement  places the processes on the hosts: pure
    open_mpi     turns an arrangement into a command line of Open MPI's mpirun: pure
    hydra        turns an arrangement into a command line of MPICH's Hydra: pure
    main         does all of that, and starts the job
    restarts     decides whether the job is started again, and on which hosts: pure
    supervisor   starts mpirun again after a loss
    processes    starts mpirun for the supervisor, and receives its signals
    notes        is what ranks leave for the supervisor: whether they began, and how they failed
    rank         runs the user's program on every rank, and ends the job when the program fails

All of them raise LaunchError for a job that can't be started. This package imports neither TensorFlow nor MPI. So the
launcher starts fast, and it starts even if they can't be loaded.
"""

from ..errors import explain


class LaunchError(ValueError):
    """A job that can't be started as requested. The text says what to change."""

    def __init__(self, what: str, to_do: str = ""):
        super().__init__(explain(what, to_do))
