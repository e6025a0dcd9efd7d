"""Conditions of requests for a key, by entity tags. Source: RFC 9110, sections 8.8.3 and 13.

The entity tag of a value is its version, as ``"7"``. A tag of another form is one that no value
has, and so is a weak one (``W/"7"``) of ``If-Match``, which compares strongly.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from bascule.errors import WrongVersion
from bascule.http.requests import MalformedRequest
from bascule.wire.tables.conditions import VERSION_MAX

TAGS_MAX: Final = 100
_TAG: Final = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_TAGS: Final = re.compile(rf"[ \t]*,*[ \t]*({_TAG})(?=[ \t]*(?:,|$))[ \t]*,?")
_VERSION: Final = re.compile(r'(W/)?"(0|[1-9][0-9]{0,18})"')


class EntityTags(NamedTuple):
    """Of one header."""

    is_any: bool
    """It is ``*``: any value."""
    strong: frozenset[int]
    """The versions of the strong tags."""
    weak: frozenset[int]
    """The versions of all tags, weak ones as well."""
    tags: int
    """How many tags there are, those included that no value has."""


class Conditions(NamedTuple):
    """What a request demands of the version that a key has."""

    match: EntityTags | None
    none_match: EntityTags | None

    def at_leader(self) -> dict[str, Any] | None:
        """The arguments of a write that compares once, where offsets are given; None if more has to
        be compared. One version holds of the last record, which may have removed the key."""
        match, none_match = self
        if match is None and none_match is None:
            return {}
        if none_match is None and match is not None and match.tags == len(match.strong) == 1:
            return {"if_version": next(iter(match.strong))}
        if match is None and none_match is not None and none_match.is_any:
            return {"if_absent": True}
        return None

    def is_matched(self, version: int | None) -> bool:
        """Whether `If-Match` holds of a key with this version; None: one without a value."""
        if self.match is None:
            return True
        return version is not None and (self.match.is_any or version in self.match.strong)

    def is_other(self, version: int | None) -> bool:
        """Whether `If-None-Match` holds, likewise."""
        if self.none_match is None or version is None:
            return True
        return not self.none_match.is_any and version not in self.none_match.weak

    def refusal(self, table: str, key: bytes, version: int | None) -> WrongVersion | None:
        """The error of a write of a key with this version; None if it may be written."""
        if not self.is_matched(version):
            assert self.match is not None
            wanted = "a value" if self.match.is_any else _one_of(self.match.strong)
        elif not self.is_other(version):
            assert self.none_match is not None
            wanted = (
                "no value" if self.none_match.is_any else f"not {_one_of(self.none_match.weak)}"
            )
        else:
            return None
        return WrongVersion(table, key, expected=None, found=version, wanted=wanted)


def conditions_of(request: Request) -> Conditions:
    """Raises: MalformedRequest."""
    return Conditions(_tags(request, "If-Match"), _tags(request, "If-None-Match"))


def _tags(request: Request, header: str) -> EntityTags | None:
    lines = request.headers.getlist(header)
    if not lines:
        return None
    text = ", ".join(lines).strip(" \t,")
    if text == "*":
        return EntityTags(True, frozenset(), frozenset(), 1)
    strong, weak, count, at = set(), set(), 0, 0
    while at < len(text):
        found = _TAGS.match(text, at)
        if found is None or count == TAGS_MAX:
            raise MalformedRequest(
                f'{header} is * or at most {TAGS_MAX} tags in quotes, such as "7", "9", got '
                f"{text[:40]!r}",
                field=header,
            )
        at, count = found.end(), count + 1
        version = _VERSION.fullmatch(found[1])
        if version is not None and int(version[2]) <= VERSION_MAX:
            weak.add(int(version[2]))
            if version[1] is None:
                strong.add(int(version[2]))
    return EntityTags(False, frozenset(strong), frozenset(weak), count)


def _one_of(versions: frozenset[int]) -> str:
    if not versions:
        return "a tag that no value has"
    return f"version {' or '.join(str(each) for each in sorted(versions)[:10])}"
