# SPDX-License-Identifier: Apache-2.0
"""What is wrong with this environment, and what to do about it: `python -m horovod_data.doctor`.

`__main__` is the command. Checks return findings (`findings`): of this machine (`machine`, `sharing`), of what is in
the environment (`environment`), of the libraries (`libraries`), and of a job that delivers (`selftest`, `transports`).
What may crash or hang runs in processes of its own (`children`): libraries in `inside`, the job's ranks in `rank`.
So the doctor itself needs neither TensorFlow nor MPI, and says what is wrong with them.
"""
