# SPDX-License-Identifier: Apache-2.0
"""Compares the certificates of two runs: python -m horovod_data.certificate a.json b.json

A certificate is the file that HOROVOD_DATA_CERTIFICATE names. It has one JSON record for each epoch of each verified
channel (docs/certificate.md). This module needs neither TensorFlow nor MPI.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Iterator, Mapping, Optional, Sequence

from .errors import explained, show_any_text

_VERSION = 2
_DIGITS = 8  # hexadecimal digits of an element's digest

# The fields that are compared. Any program may have written the file, so the types are checked.
_FIELDS: dict[str, type] = {
    "channel": str,
    "epoch": int,
    "verdict": str,
    "finding": str,
    "rows": int,
    "order": str,
    "any_order": str,
    "digests": str,
}
_CUT = "not complete"
_NAMES = ("first", "second")

Record = dict[str, Any]


def last() -> dict[str, Record]:
    """The last record of each verified channel of this run, by the channel's name, without `digests`. Local.

    Only the process of reader 0 has records. Other processes get {}.

    A record exists when a loop has reached the end of the dataset. Keras' fit() counts steps and does not ask for the
    end. So after an epoch of fit(), last() may return the previous epoch's record for a moment. The same may happen
    after a loop that ends with an error.

    Raises:
      RuntimeError: in a forked child.
    """
    from .native import bindings  # this import loads the library

    return bindings.certificates()


def read(path: str) -> dict[tuple[str, int], list[Record]]:
    """The records of a certificate, by channel and epoch, in the order of the file.

    An epoch has several records if a run distributed its channel's name again, or continued from a checkpoint.

    Raises:
      OSError: the file can't be read.
      ValueError: the file is not a certificate. The text names the line.
    """
    records: dict[tuple[str, int], list[Record]] = {}
    with open(path, "rb") as lines:  # in bytes, so that the error can name a line that is not text
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode(errors="replace"))
                _check(record)
                records.setdefault((record["channel"], record["epoch"]), []).append(record)
            except (ValueError, RecursionError) as error:
                raise explained(
                    ValueError,
                    f"line {number} of {path} is no record of a certificate ({error})",
                    "Name a file that HOROVOD_DATA_CERTIFICATE=... or horovod-data-run --certificate ... "
                    "has written, with this version",
                ) from None
    if not records:
        raise explained(ValueError, f"{path} has no record", "An epoch is recorded when it is over")
    return records


def _check(record: Any) -> None:
    """Raises ValueError if the record has another version, or if a compared field is missing or has a wrong value."""
    if not isinstance(record, dict) or "certificate" not in record:
        raise ValueError("it has no certificate")
    if record["certificate"] != _VERSION:
        raise ValueError(f"of version {record['certificate']!r:.40}, not {_VERSION}")
    for field, kind in _FIELDS.items():
        if field not in record:
            raise ValueError(f"it has no {field}")
        if type(record[field]) is not kind:
            raise ValueError(f"its {field} is {record[field]!r:.40}")
    if record["verdict"] not in ("complete", _CUT, "wrong"):
        raise ValueError(f"its verdict is {record['verdict']!r:.40}")


def compare(a: Record, b: Record) -> tuple[bool, str]:
    """Compares two records: the rows, their order, and whether both epochs are complete.

    Returns:
      A pair. The first part is True if the records have the same rows in the same order, and both epochs are complete
      or both are not. The second part is a sentence with the result, or with the place of the first difference.
    """
    for name, record in zip(_NAMES, (a, b)):
        if record["verdict"] == "wrong":
            return False, f"the {name} is wrong itself: {record['finding']}"
    cut = [name for name, record in zip(_NAMES, (a, b)) if record["verdict"] == _CUT]
    note = "; neither epoch is complete" if len(cut) == 2 else f"; the {cut[0]} is not complete" if cut else ""
    same = f"the same {a['rows']:,} row{'' if a['rows'] == 1 else 's'}"
    same_rows = (a["rows"], a["any_order"]) == (b["rows"], b["any_order"])
    if same_rows and a["order"] == b["order"]:
        # In an epoch that is not complete, some ranks may have got more rows. The record's digests lack these rows.
        return len(cut) != 1, f"{same} in the same order{note}"
    what = f"{same} in another order" if same_rows else f"other rows: {a['rows']:,} and {b['rows']:,}"
    return False, f"{what}; {_first_difference(a, b)}{note}"


def compare_epoch(ours: Sequence[Record], theirs: Sequence[Record]) -> Iterator[tuple[str, bool, str]]:
    """Compares the records of one epoch in two files.

    Yields (which records, whether they are equal, compare()'s sentence).
    """
    if len(ours) != len(theirs):
        # One run was interrupted more often. In each file, the last record is that of the whole epoch.
        which = f" (the last of {len(ours)} record{'s' * (len(ours) > 1)} and of {len(theirs)})"
        yield which, *compare(ours[-1], theirs[-1])
        return
    for at, (a, b) in enumerate(zip(ours, theirs)):
        same, text = compare(a, b)
        if (
            not same and _is_continued(ours[at:]) and _is_continued(theirs[at:])
        ):  # the runs were interrupted at different places
            same, text = True, "not complete, and the next record continues it, in both files"
        yield f" (record {at + 1} of {len(ours)})" if len(ours) > 1 else "", same, text


def _is_continued(records: Sequence[Record]) -> bool:
    """Says whether the first record is not complete, and the second record has all elements of the first.

    If so, the run of the second record continued the run of the first.
    """
    return (
        len(records) > 1
        and records[0]["verdict"] == _CUT
        and records[0]["rows"] <= records[1]["rows"]
        and bool(records[1]["digests"].startswith(records[0]["digests"]))
    )


def _first_difference(a: Record, b: Record) -> str:
    ours, theirs = (
        [record["digests"][at : at + _DIGITS] for at in range(0, len(record["digests"]), _DIGITS)] for record in (a, b)
    )
    shorter = min(len(ours), len(theirs))
    element = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
    if element < shorter:
        return f"the first element that differs is number {element:,}"
    if len(ours) == len(theirs):
        return f"no difference in the first {shorter:,} elements; the records list no more"
    return f"the {_NAMES[len(theirs) > len(ours)]} goes on where the other ends, with element {element:,}"


def _shown(text: str) -> str:
    """The text with control characters escaped, because a terminal would execute them."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line. Its exit status is 0 if the runs are equal, 1 if they differ, 2 if they can't be compared."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod_data.certificate",
        description="Says for each epoch whether two runs delivered the same rows in the same order. If not, names the "
        "first element that differs. Exit status: 0: all epochs are equal. 1: an epoch differs, or is complete in one "
        "run alone. 2: a file is no certificate.",
    )
    parser.add_argument("first", help="a file that HOROVOD_DATA_CERTIFICATE named in one run")
    parser.add_argument("second", help="... in another run")
    files = parser.parse_args(argv)
    show_any_text()
    try:
        first, second = read(files.first), read(files.second)
    except (OSError, ValueError) as error:
        print(f"horovod_data: {_shown(str(error))}", file=sys.stderr)
        return 2
    try:
        return _compare(files.first, files.second, first, second)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # BrokenPipeError: the program that reads the output has ended
            print(f"horovod_data: the comparison can't be written: {error.strerror}", file=sys.stderr)
        sys.stdout = None  # otherwise Python reports unwritten output when it exits
        return 2


def _compare(name: str, other: str, first: Mapping[Any, list[Record]], second: Mapping[Any, list[Record]]) -> int:
    """Prints the comparison. Returns the status."""
    equal = True
    for key in sorted({*first, *second}):
        if key in first and key in second:
            compared = list(compare_epoch(first[key], second[key]))
        else:
            compared = [("", False, f"only in {name if key in first else other}")]
        for which, same, text in compared:
            equal = equal and same
            print(_shown(f"channel {key[0]}, epoch {key[1]}{which}: {text}"))
    if sys.stdout is not None:  # None: stdout was closed at the start. The exit status is then the only answer
        sys.stdout.flush()
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
