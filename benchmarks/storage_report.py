# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of storage.py: the accelerator utilisation of each way, and what the machine allows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from page import COLOURS, defined, prose, table
from profiles import PROFILES, Profile

Result = dict[str, Any]

OURS = "horovod_data, per_rank"
BESIDE = f"{OURS}, beside Horovod"
ALONE = "limit: reader alone"
NOT_DELIVERED = {"files": "limit: each reads its own files", "ready-made": "limit: local datasets"}
SOURCES = list(NOT_DELIVERED)


def profile_of(result: Result) -> Profile:
    return PROFILES[result["profile"]].shrunk(result["shrink"])


def named(result: Result, source: str, name: str) -> Result | None:
    return next(
        (way for way in result["ways"] if (way["source"], way["name"]) == (source, name) and way["rounds"]), None
    )


def trained(result: Result, source: str) -> list[Result]:
    """The ways that fed an accelerator."""
    return [way for way in result["ways"] if way["source"] == source and way["name"] != ALONE and way["rounds"]]


def busy(way: Result) -> list[float]:
    return [round_["busy"] for round_ in way["rounds"]]


def utilisation(way: Result) -> float:
    return statistics.median(busy(way))


def a_step(way: Result) -> float:
    return statistics.median(round_["a_step"] for round_ in way["rounds"])


def cores(way: Result) -> float:
    """Processor seconds of all ranks per second."""
    return statistics.median(round_["cpu"] / (round_["a_step"] * round_["steps"]) for round_ in way["rounds"])


def allowed(result: Result) -> float:
    """The utilisation that the pipeline alone in one process would allow."""
    way = named(result, "files", ALONE)
    return min(1.0, profile_of(result).seconds / a_step(way)) if way else 0.0


def read_allowed(result: Result) -> float:
    """The utilisation that bare read() of all ranks would allow, without any other work."""
    return min(1.0, statistics.median(result["read"]) / profile_of(result).gigabytes(result["ranks"])[0])


def figure(way: Result | None) -> str:
    return f"{utilisation(way):.2f}" if way else ""


def text(told: dict[str, Any]) -> list[str]:
    results = told["results"]
    about = {way["name"]: way["about"] for result in results for way in result["ways"]}
    lines = [
        prose(
            "The table has the accelerator utilisation of MLPerf Storage's training profiles for H100, as DLIO computes it. A step of "
            f"training is a sleep, and then a barrier of all {results[0]['ranks'] if results else 0} ranks on this one machine. Each round "
            f"of a way is an epoch of its own pipeline. Figures are medians of {told['rounds']} rounds of about {told['seconds']:.2g} s, in "
            "brackets the worst and the best round. All ways run in turns in one job. Slow ways have fewer rounds, two at least."
        ),
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
        *[f"- **{name}**: {what}" for name, what in about.items() if name != BESIDE],
        "",
        "Horovod runs only while its operations are measured, and in the way *beside Horovod*, because its threads take processor time.",
    ]
    for result in results:
        lines += _one(result)
    rows = []
    for result in results:
        alone, profile = named(result, "files", ALONE), profile_of(result)
        if alone:
            rows.append(
                [
                    profile.name,
                    f"{profile.gigabytes(result['ranks'])[0]:.2f}",
                    f"{statistics.median(result['read']):.2f}",
                    f"{read_allowed(result):.2f}",
                    f"{profile.seconds * 1e3:g} ms",
                    f"{a_step(alone) * 1e3:,.1f} ms",
                    f"{allowed(result):.2f}",
                ]
            )
    return [
        *lines,
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
        *table(["", "GB/s needed", "GB/s, read()", "would allow", "a step", "pipeline", "pipeline would allow"], rows),
    ]


def _one(result: Result) -> list[str]:
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
    for source in SOURCES:
        rows = [
            [
                way["name"],
                f"{utilisation(way):.3f} ({min(busy(way)):.3f}-{max(busy(way)):.3f})",
                f"{profile.seconds / a_step(way):.3f}",
                f"{a_step(way) * 1e3:,.2f} ms",
                f"{cores(way):.2f}",
                str(len(way["rounds"])),
                "yes" if utilisation(way) >= profile.mark else "no",
            ]
            for way in trained(result, source)
        ]
        lines += [
            "",
            f"**{profile.name}, {source}**",
            *table(["", "utilisation", "of the sleep asked for", "a step", "cores", "rounds", "passes"], rows),
        ]
        ours = named(result, source, OURS)
        if ours and ours["report"]:
            lines.append(f"`hvdata.report()` of the last round: {ours['report']}.")
    return lines


def summary(told: dict[str, Any]) -> list[str]:
    """A row for each profile and source. Then the rivals, and the limits of all ways."""
    rows = []
    rivals = list(dict.fromkeys(way["name"] for r in told["results"] for way in r["ways"] if way["kind"] == "rival"))
    for source in SOURCES:
        for result in told["results"]:
            profile = profile_of(result)
            rows.append(
                [
                    f"{profile.name}, {source}",
                    f"{profile.mark:.2f}",
                    f"{profile.aim:.2f}",
                    figure(named(result, source, OURS)),
                    figure(named(result, source, BESIDE)),
                    *[figure(named(result, source, rival)) for rival in rivals],
                    figure(named(result, source, NOT_DELIVERED[source])),
                    *([f"{allowed(result):.2f}", f"{read_allowed(result):.2f}"] if source == "files" else ["", ""]),
                ]
            )
    return table(
        [
            "",
            "to pass",
            "our aim",
            "horovod_data",
            "beside Horovod",
            *rivals,
            "limit: nothing delivered",
            "limit: the pipeline alone",
            "limit: read() alone",
        ],
        rows,
    )


def drawn(told: dict[str, Any]) -> Callable[[Any], Any]:
    """Draws the utilisation, a panel for each profile and source. A line shows the value that passes."""
    results = told["results"]

    def draw(pyplot: Any) -> Any:
        figure, axes = pyplot.subplots(len(SOURCES), len(results), squeeze=False, figsize=(4.4 * len(results), 5.6))
        for row, source in enumerate(SOURCES):
            for column, result in enumerate(results):
                axis, shown = axes[row][column], trained(result, source)[::-1]  # because barh begins at the bottom
                middle = [utilisation(way) for way in shown]
                spread = [
                    [m - min(busy(way)) for m, way in zip(middle, shown)],
                    [max(busy(way)) - m for m, way in zip(middle, shown)],
                ]
                axis.barh(
                    [way["name"] for way in shown],
                    middle,
                    xerr=spread,
                    color=[COLOURS[way["kind"]] for way in shown],
                    ecolor="#555555",
                )
                axis.axvline(profile_of(result).mark, color="#b2182b")
                axis.set_xlim(0, 1)
                axis.set_title(f"{profile_of(result).name}, {source}")
                axis.tick_params(labelleft=column == 0)
                axis.set_xlabel("utilisation; the line: to pass" if row else "")
        return figure

    return draw
