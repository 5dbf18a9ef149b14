# SPDX-License-Identifier: Apache-2.0
"""After "Returns:" and "Raises:" a docstring may have a text with a colon. The part before that colon is a type only if it is
one name or several names."""

import re

from griffe import DocstringSectionKind, Extension, Function

_NAMES = re.compile(r"[\w.]+(, [\w.]+)*")


class Prose(Extension):
    def on_package(self, *, pkg, **_):
        _visit(pkg)


def _visit(module):
    for member in module.members.values():
        if member.is_alias:
            continue
        if isinstance(member, Function) and member.docstring:
            for section in member.docstring.parsed:
                if section.kind in {DocstringSectionKind.returns, DocstringSectionKind.raises}:
                    for item in section.value:
                        _mend(item, member.returns if section.kind is DocstringSectionKind.returns else None)
        _visit(member)


def _mend(item, otherwise):
    said = str(item.annotation).strip("()")
    if _NAMES.fullmatch(said):
        item.annotation = said
    else:
        item.annotation = otherwise
        item.description = f"{said}: {item.description}"
