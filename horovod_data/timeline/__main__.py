# SPDX-License-Identifier: Apache-2.0
"""The command line: python -m horovod_data.timeline merge FILE... -o OUT"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Optional, Sequence

from ..errors import explained, show_any_text
from . import parts
from .files import Timeline, merge, read, read_parts


def _describe(timeline: Timeline) -> str:
    text = f"{timeline.path}: {len(timeline.events):,} events of {'horovod_data' if timeline.ours else 'Horovod'}"
    if timeline.broken_off:
        text += "; the job was killed, or runs on"
    return text + (f"; {timeline.left_out:,} were left out" if timeline.left_out else "")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line. Its exit status is 0, or 2 if a file or an argument is wrong."""
    parser = argparse.ArgumentParser("python -m horovod_data.timeline", description="Puts timelines of a job into one.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    merging = commands.add_parser(
        "merge",
        help="several timelines of one job into one file",
        description=(
            "Puts horovod_data's timeline of a job and Horovod's into one file, for Perfetto "
            "(https://ui.perfetto.dev) or chrome://tracing. For a job that was killed, name the files of all its processes."
        ),
    )
    merging.add_argument(
        "files", nargs="+", metavar="FILE", help="timelines of horovod_data and of Horovod, in any order"
    )
    merging.add_argument("-o", "--output", required=True, metavar="OUT", help="the file to write")
    args = parser.parse_args(argv)
    show_any_text()
    try:
        if any(os.path.exists(args.output) and os.path.samefile(file, args.output) for file in args.files):
            raise explained(ValueError, f"{args.output} is one of the files to be merged", "Give -o another name", "")
        of_processes = [file for file in args.files if parts.is_part(file)]
        timelines = read_parts(of_processes) if of_processes else []
        timelines += [read(file) for file in args.files if file not in of_processes]
        if not any(one.ours for one in timelines):
            to_do = "Name the one that HOROVOD_DATA_TIMELINE=... has written, too"
            raise explained(ValueError, "None of these timelines is horovod_data's", to_do, "")
        events = merge(timelines)
        parts.write(args.output, events)
    except (OSError, ValueError) as error:
        said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        print(f"horovod_data.timeline: error: {said}", file=sys.stderr)
        return 2
    for one in timelines:
        print(_describe(one))
    print(f"{args.output}: {len(events):,} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
