# SPDX-License-Identifier: Apache-2.0
"""A rank that comes to its end, with status 0, without horovod_data.init(), in a job over several hosts.

Ranks that wait in init() see only those of their own host (ending/siblings.py), and MPI waits for ever for a process that never
calls it. Whether anybody waits the rank that ends can't see either: perhaps all ranks end here, because they were asked for
--help, or found that nothing is left to do, and that is no error. So it comes to the meeting in init() after all, with the
word that it leaves. Who waits there gets an error that names it; and where all have come only to say so, each ends as it would
have ended.

horovod_data/launcher/rank.py calls this: under horovod-data-run the end of a program is ours to see.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import resource
import socket
import sys
import threading
from typing import Optional

from ..errors import explain, place, say
from . import siblings
from .processes import fork_check

_LARGE_KIB = 100_000  # less than TensorFlow takes, more than a tool
_TOLD_SECONDS = 10.0  # by then all who have initialised MPI have come to the meeting, or won't


def leave() -> bool:
    """Says that this process leaves. Whether others wait for it, which a line says then: it must end with another status.

    Waits for ranks that have come neither to init() nor to their end. Where the core can't be loaded, nobody waits on this
    rank's account: False.
    """
    if not siblings.over_hosts() or _has_joined() or _had_a_large_child():
        return False
    siblings.tell_end()
    try:
        from ..job import handshake
        from ..job.settings import read_settings
        from ..native import bindings

        bindings.check()
        # However long that takes: the others may have hours of work to do, and nobody has asked this rank for anything.
        patient = dataclasses.replace(read_settings(os.environ), stall_seconds=math.inf, timeout_seconds=0)
        with handshake.watched(os.environ, patient, leaving=True):
            bindings.mpi_init()
        (rank, size), host = bindings.comm_info(None), socket.gethostname()
    except Exception:  # whatever keeps this rank from it: its end is what it was
        return False
    answers: list[list[bytes]] = []
    word = json.dumps({"host": host, "leaves": True}).encode()
    talk = threading.Thread(
        target=lambda: answers.append(bindings.comm_exchange(None, word)), name="horovod_data end", daemon=True
    )
    talk.start()
    talk.join(_TOLD_SECONDS)
    if answers:
        waiting = [other for other, said in enumerate(answers[0]) if not leaves(said)]
        why = (
            f"rank{'s' * (len(waiting) > 1)} {', '.join(map(str, waiting[:8]))}{', ...' * (len(waiting) > 8)} of {size} "
            f"wait{'s' * (len(waiting) == 1)} for it there"
        )
    else:  # in hvd.init() or in mpi4py: they have initialised MPI, or this rank could not have
        waiting, why = [rank], "other ranks have initialised MPI, and wait for it"
    if waiting:
        say(
            explain(
                f"This program has come to its end without having called horovod_data.init(): {why}",
                "Every process of the job must call it: look here for what ends the program before it (a return, sys.exit, os._exit), "
                "or start fewer processes",
                place(rank, host),
            )
        )
    return bool(waiting)


def leaves(said: bytes) -> Optional[str]:
    """The host of a rank that has come to the meeting only to say that it leaves; None: it takes part."""
    word = json.loads(said)
    return word["host"] if word.get("leaves") else None


def _has_joined() -> bool:
    """Whether this process has called init(), or is one of the doctor's, which has meetings of its own."""
    membership = sys.modules.get("horovod_data.membership")
    return getattr(membership, "_job", None) is not None or "horovod_data.doctor" in sys.modules or _forked()


def _had_a_large_child() -> bool:
    """Whether a process that this one has started may have been the rank: MPI takes each rank once."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > _LARGE_KIB


_forked = fork_check()  # children of who imported this are no ranks
