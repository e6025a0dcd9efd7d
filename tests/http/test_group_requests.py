"""What requests about groups may say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from typing import Any

import pytest
from starlette.requests import Request

from bascule.group_results import GroupListing
from bascule.http.groups import GroupsApi, ResetOffsetsRequest
from bascule.http.requests import NUMBER_MAX as LARGEST
from bascule.http.requests import MalformedRequest, PurgeRequest, decode_body


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{}", "exactly one of"),
        ('{"to": "latest", "offset": 1}', "exactly one of"),
        ('{"offset": -1}', "offset must be at least 0, got -1"),
        (f'{{"offset": {LARGEST + 1}}}', f"offset must be at most {LARGEST}, got {LARGEST + 1}"),
        (f'{{"timestamp_ms": {1 << 70}}}', f"timestamp_ms must be at most {LARGEST}, got"),
        (f'{{"shift_by": {1 << 70}}}', f"shift_by must be at most {LARGEST}, got"),
        (f'{{"shift_by": {-(1 << 70)}}}', f"shift_by must be at least {-LARGEST}, got"),
        (f'{{"to": "latest", "stream": "s", "partition": {1 << 70}}}', "partition must be at most"),
        ('{"to": "latest", "partition": 0}', "partition needs stream"),
    ],
)
def test_resets_that_are_refused(body: str, says: str) -> None:
    with pytest.raises(MalformedRequest, match=says):
        decode_body(body.encode(), ResetOffsetsRequest)


def test_numbers_of_any_request_have_64_bits() -> None:
    with pytest.raises(MalformedRequest, match=f"to_offset must be at most {LARGEST}, got"):
        decode_body(b'{"to_offset": %d}' % (1 << 64), PurgeRequest)


@pytest.mark.parametrize("by", [-LARGEST, -1, 0, LARGEST])
def test_a_shift_may_go_past_the_ends(by: int) -> None:
    asked = decode_body(b'{"shift_by": %d}' % by, ResetOffsetsRequest)
    assert asked.shift_by == by


class ListedGroups:
    """Says what was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, Collection[str] | str | None] = {}

    async def list_groups(self, **asked: Collection[str] | str | None) -> list[GroupListing]:
        self.asked = asked
        return []


def list_groups(query: str) -> dict[str, Any]:
    groups: Any = ListedGroups()
    request = Request({"type": "http", "query_string": query.encode(), "headers": []})
    response = asyncio.run(GroupsApi(groups).handle_list_groups(request))
    assert json.loads(bytes(response.body)) == {"groups": []}
    asked: dict[str, Any] = groups.asked
    return asked


@pytest.mark.parametrize(
    ("query", "states", "types"),
    [
        ("", (), ()),
        ("state=stable", ("stable",), ()),
        ("state=PreparingRebalance&type=classic", ("PreparingRebalance",), ("classic",)),
        ("state=Reconciling&type=Consumer", ("Reconciling",), ("Consumer",)),
    ],
)
def test_groups_are_chosen_by_state_and_type(
    query: str, states: tuple[str, ...], types: tuple[str, ...]
) -> None:
    assert list_groups(query) == {"stream": None, "states": states, "types": types}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("state=Stabel", "state 'Stabel', expected Empty, PreparingRebalance, .* or Reconciling"),
        ("state=", "state '', expected"),
        ("type=share", "type 'share', expected classic or consumer"),
        ("type=" + "x" * 1_000, "type 'x{40}', expected"),
    ],
)
def test_unknown_states_and_types_are_refused(query: str, says: str) -> None:
    with pytest.raises(MalformedRequest, match=says):
        list_groups(query)
