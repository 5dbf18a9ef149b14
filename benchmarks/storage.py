# SPDX-License-Identifier: Apache-2.0
"""The training profiles of MLPerf Storage: how busy delivery keeps four simulated H100 accelerators, and how busy its
rivals do.

    python benchmarks/storage.py                     # CosmoFlow, ResNet-50, 3D U-Net; about 10 minutes
    python benchmarks/storage.py --docs              # and publish it in docs/

It follows two repositories:

- github.com/mlcommons/storage, commit caa90c9: the profiles (see profiles.py), and accelerator utilisation (section 4
  of Submission_guidelines.md)
- github.com/argonne-lcf/dlio_benchmark, commit e1919d7, the program that it runs: the loop and the formula (see
  ranks/storage.py), the files and the way to read them (see ranks/profile_data.py)

The page says what differs. One MPI job measures one profile after the other, and all ways take turns. Needs Horovod,
mpi4py, and 1.2 GB in the folder for temporary files (TMPDIR). The files are deleted at the end, and are read from the
page cache. Writes storage.json and .md to --out. Status 1: something failed.
"""

from __future__ import annotations

import sys
from statistics import median

import launch
from page import Result, defined, prose, spread, table, write
from profiles import PROFILES, Profile

OURS = "horovod_data, per_rank"
ALONE = "limit: reader alone"
SOURCES = ("files", "ready-made")


def profile_of(result: Result) -> Profile:
    return PROFILES[result["profile"]].shrunk(result["shrink"])


def middle(way: Result, what: str) -> float:
    return median(round_[what] for round_ in way["rounds"])


def of_profile(result: Result) -> list[str]:
    """The part of the page about one profile."""
    profile = profile_of(result)
    read, delivered = profile.gigabytes(result["ranks"])
    lines = [
        "",
        f"## {profile.name}",
        "",
        prose(f"""
        Each accelerator gets {profile.rows} x {profile.delivered:,} bytes every {profile.seconds * 1e3:g} ms, made from {profile.rows} x
        {profile.read:,} bytes in {profile.format} files. All together {delivered:.2f} GB/s are delivered, and {read:.2f} GB/s read. A utilisation
        of {profile.mark:.2f} passes."""),
    ]
    columns = {
        "": lambda way: way["name"],
        "utilisation": lambda way: spread([round_["busy"] for round_ in way["rounds"]], 3),
        "of the sleep asked for": lambda way: f"{profile.seconds / middle(way, 'a_step'):.3f}",
        "a step": lambda way: f"{middle(way, 'a_step') * 1e3:,.2f} ms",
        # processor seconds of all ranks per second
        "cores": lambda way: f"{median(r['cpu'] / (r['a_step'] * r['steps']) for r in way['rounds']):.2f}",
        "rounds": lambda way: str(len(way["rounds"])),
        "passes": lambda way: "yes" if middle(way, "busy") >= profile.mark else "no",
    }
    for source in SOURCES:
        ways = [way for way in result["ways"] if way["source"] == source and way["name"] != ALONE and way["rounds"]]
        lines += ["", f"**{profile.name}, {source}**", *table(ways, columns)]
        lines += [
            f"`hvdata.report()` of the last round: {way['report']}."
            for way in ways
            if way["name"] == OURS and way["report"]
        ]
    return lines


def allowed(results: list[Result]) -> list[str]:
    """The table of what this machine allows."""

    def needed(result: Result) -> float:
        return profile_of(result).gigabytes(result["ranks"])[0]

    def alone(result: Result) -> float:
        """Seconds of a step of the pipeline alone in one process."""
        return next(middle(way, "a_step") for way in result["ways"] if way["name"] == ALONE)

    columns = {
        "": lambda r: profile_of(r).name,
        "GB/s needed": lambda r: f"{needed(r):.2f}",
        "GB/s, read()": lambda r: f"{median(r['read']):.2f}",
        "would allow": lambda r: f"{min(1.0, median(r['read']) / needed(r)):.2f}",
        "a step": lambda r: f"{profile_of(r).seconds * 1e3:g} ms",
        "pipeline": lambda r: f"{alone(r) * 1e3:,.1f} ms",
        "pipeline would allow": lambda r: f"{min(1.0, profile_of(r).seconds / alone(r)):.2f}",
    }
    return table(results, columns)


def main() -> int:
    # least: timed steps of a round, where fewer fit in its seconds. shrink: samples and computation so many times
    # smaller, which is no measurement.
    settings = {"rounds": 4, "ranks": 4, "profiles": list(PROFILES), "least": 2, "shrink": 1}
    quick = {"ranks": 2, "least": 1, "shrink": 512}
    arguments = launch.parsed(__doc__, quick, **{"seconds": 1.0, "limit": 1200.0, **settings})
    results = launch.run("storage", arguments.ranks, arguments)
    about = {way["name"]: way["about"] for result in results for way in result["ways"]}
    text = [
        "The table has the accelerator utilisation of MLPerf Storage's training profiles for H100, as DLIO computes it. A step of "
        f"training is a sleep, and then a barrier of all {arguments.ranks} ranks on this one machine. Each round "
        f"of a way is an epoch of its own pipeline. Figures are medians of {arguments.rounds} rounds of about {arguments.seconds:.2g} s, in "
        "brackets the worst and the best round. All ways run in turns in one job. Slow ways have fewer rounds, two at least.",
        *defined(
            {
                "Utilisation": "the time of sleep over all time, without the first step of each epoch. The figure is the mean over all "
                "simulated accelerators",
                "Of the sleep asked for": "the profile's computation time over the time of a step. It is stricter: if busy cores end a sleep "
                "late, the first column counts this as work",
                "Cores": "processor time of all processes, over time",
            }
        ),
        "The data:",
        "",
        "- *Files* have the profile's format, about 1 GB, and all records have the mean length. They were written just before, and are read "
        "again and again. So all reads are from the kernel's page cache, and no disk is measured, which MLPerf would do.",
        "- The bytes that were read are delivered, which costs a copy. DLIO hands out a random sample that it makes once.",
        "- `tf.io.read_file` reads 3D U-Net's npz files as a whole. DLIO calls np.load in worker processes of PyTorch, which also checks "
        "their checksums.",
        "- A pipeline that feeds four ranks decodes with the threads that the profile gives to four ranks, eight at most.",
        "- *Ready-made* elements are in the reader's memory, so only delivery is measured.",
        "",
        "The ways:",
        "",
        *[f"- **{name}**: {what}" for name, what in about.items() if not name.endswith("beside Horovod")],
        "",
        "Horovod runs only while its operations are measured, and in the way *beside Horovod*, because its threads take processor time.",
    ]
    for result in results:
        text += of_profile(result)
    text += [
        "",
        "## What this machine allows",
        "",
        *defined(
            {
                "GB/s needed": "the bytes that accelerators need so that they never wait",
                "GB/s, read()": "the speed of all ranks together if they only read, one sample at a time into the same memory",
                "Pipeline": "the time in which one process, which does nothing else, makes all ranks' batches of a step",
                "Would allow": "the utilisation if the job did nothing else",
            }
        ),
        *allowed(results),
    ]
    missing = len(results) < len(arguments.profiles) or not all(way["rounds"] for r in results for way in r["ways"])
    return write("storage", arguments, text, results=results) or int(missing)


if __name__ == "__main__":
    sys.exit(main())
