# SPDX-License-Identifier: Apache-2.0
"""Finds faults in this environment, and says what to do: `python -m horovod_data.doctor`.

`__main__` is the command. Checks return findings (`findings`):

- of this machine: `machine`
- of the environment: `environment`
- of the libraries: `libraries`
- of a job that delivers: `selftest`

Code that may crash or hang runs in separate processes (`children`): the libraries in `inside`, the job's ranks in
`rank`. So the doctor itself needs neither TensorFlow nor MPI. A rank of its job needs no TensorFlow.
"""
