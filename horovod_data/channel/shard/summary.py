# SPDX-License-Identifier: Apache-2.0
"""With shard="auto": the message by which readers compare the parts of one source that they read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Optional

from ...errors import explained


@dataclasses.dataclass(frozen=True)
class PartSummary:
    """A reader's message to all ranks. It describes the reader's part."""

    kind: str  # "files" or "elements"
    digest: str = ""  # digest of the files' names, in the order in which the files are divided
    names: str = ""  # digest of the same names, sorted
    kinds: str = ""  # digest of the stages
    seeds: str = ""  # digest of their seeds
    what: str = dataclasses.field(default="", compare=False)  # what each reader reads, for people


def check_parts(
    parts: Sequence[Optional[PartSummary]], fingerprints: Sequence[Optional[str]], names: Sequence[str], what: str
) -> None:
    """Raises ValueError, on every rank, if the readers' parts don't make up one whole.

    Each list has one entry for each reader.
    """
    first = parts[0]
    for part, fingerprint, name in zip(parts[1:], fingerprints[1:], names[1:]):
        files = part is not None and part.kind == "files"
        unknown = None in (fingerprint, fingerprints[0])
        if part == first and (part is None or files or unknown or fingerprint == fingerprints[0]):
            continue
        differ = "have different ones"
        to_do = (
            "Return the same dataset on every reader, without shard() and with the same files; or leave shard out, if "
        )
        to_do += "the dataset function shards"
        if part is not None and first is not None and part.kind == first.kind:
            if files and part.names == first.names:
                differ, to_do = "have its files in different orders", "Sort the list of files"
            elif not files and part.kinds == first.kinds and part.seeds != first.seeds:
                differ = "have different seeds in it"
                to_do = "Give shuffle() and similar stages a seed, and tf.random.set_seed() the same one on all readers"
        both = f'shard="auto" in {what} divides one pipeline between the readers, but {names[0]} and {name} {differ}'
        raise explained(ValueError, f"{both}: rows would come twice or not at all", to_do, where="")
