# SPDX-License-Identifier: Apache-2.0
"""Reads the timelines that jobs of tests have written, and checks what is true of every timeline."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

TRAINER = {"wait for data", "receive", "step"}
READER = {"pipeline", "deal", "wait for room", "serve"}


def load(path: Path) -> list[dict[str, Any]]:
    """The events."""
    text = path.read_text()
    assert text.endswith("\n]\n"), text[-200:]
    events: list[dict[str, Any]] = json.loads(text)
    return events


def rows(events: list[dict[str, Any]]) -> dict[int, str]:
    """The names of the processes by row."""
    names = [event for event in events if event["ph"] == "M" and event["name"] == "process_name"]
    named = {event["pid"]: event["args"]["name"] for event in names}
    assert len(named) == len(names), f"a row has two names: {names}"
    return named


def phases(events: list[dict[str, Any]], row: int, role: str, channel: str = "train") -> list[dict[str, Any]]:
    """The phases of a process in a channel, in order. Checks that they don't overlap."""
    mine = [event for event in events if event["ph"] == "X" and (event["pid"], event.get("cat")) == (row, role)]
    found = sorted((event for event in mine if event["args"]["channel"] == channel), key=lambda event: event["ts"])
    assert {event["name"] for event in found} <= (TRAINER if role == "trainer" else READER)
    for one, other in zip(found, found[1:]):
        assert one["ts"] + one["dur"] <= other["ts"] + 0.0015, (one, other)  # 1.5 ns, because times are rounded
    return found


def seconds(found: list[dict[str, Any]]) -> dict[str, float]:
    """The sum of the durations by name."""
    sums: dict[str, float] = defaultdict(float)
    for event in found:
        sums[event["name"]] += event["dur"] / 1e6
    return sums


def left_out(events: list[dict[str, Any]]) -> int:
    (end,) = [event for event in events if event["name"] == "horovod_data end"]
    return int(end["args"]["left_out"])
