# SPDX-License-Identifier: Apache-2.0
"""horovod-data-run: starts the processes of a job under Open MPI or MPICH, dedicated readers among them.

    options      the command line, horovodrun's own options included
    allocation   hosts and slots from Slurm, PBS, LSF, Kubernetes' MPI operator
    hosts        the ways in which hosts and slots are written
    arrangement  who runs where: pure
    open_mpi     an arrangement as a command line of Open MPI's mpirun: pure
    hydra        an arrangement as a command line of MPICH's Hydra: pure
    main         all of that, and the start
    rank         what runs on every rank, around the user's program, so that a rank's failure ends the job

Nothing here imports TensorFlow or MPI: the launcher starts in a moment, also where neither can be loaded.
"""


class LaunchError(ValueError):
    """A job that can't be started as it was asked for. The text says what to change."""
