# SPDX-License-Identifier: Apache-2.0
"""Finds what is wrong with this environment, and what to do about it: `python -m horovod_data.doctor`.

`__main__` is the command. Checks return findings (`findings`): of this machine (`machine`, `sharing`), of the environment
(`environment`), of the libraries (`libraries`), and of a job that delivers (`selftest`, `transports`). Code that may crash or hang
runs in processes of its own (`children`): the libraries in `inside`, the job's ranks in `rank`. So the doctor itself needs neither
TensorFlow nor MPI.
"""
