"""The query with which a client asks for a page of changes, as the node takes it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.requests import Request

from bascule.client.admin.table_requests import TableRequests
from bascule.http.requests import MalformedRequest
from bascule.http.tables.changes import page_asked
from bascule.table_results import PageAsked
from bascule.wire.tables.sync_pages import CRC_HEADER, SyncPage, checksum, encode_page
from support.virtual_time import run_virtually as run

PAGE = SyncPage(
    table=bytes(16), position=3, epoch=1, oldest=0, is_full=False, after=b"", next_after=None,
    high_watermark=3, keys=-1, rows=[], read_at=5, read_epoch=2,
)  # fmt: skip


class SentRequests(TableRequests):
    """Keeps the last request, and answers with `PAGE`."""

    async def _request(self, method: str, path: str, **more: Any) -> httpx.Response:
        self.path = path
        found = encode_page(PAGE)
        return httpx.Response(200, content=found, headers={CRC_HEADER: checksum(found)})


def taken(query: str) -> PageAsked:
    """What a node takes from a query."""
    return page_asked(
        Request({"type": "http", "method": "GET", "query_string": query.encode(), "headers": []})
    )


@pytest.mark.parametrize(
    "asked",
    [
        PageAsked(
            table=bytes(range(16)), since=5, epoch=2, after=b"a&\xff %", rows_max=7, bytes_max=99,
            wait=1.5, follower="a copy", applied=4, seen=8, seen_epoch=3,
        ),
        PageAsked(
            table=None, since=0, epoch=-1, after=None, rows_max=1, bytes_max=1, wait=0.0,
            follower="f", applied=0, seen=0, seen_epoch=-1,
        ),
    ],
)  # fmt: skip
def test_a_node_takes_what_a_client_has_asked(asked: PageAsked) -> None:
    requests = SentRequests()
    assert run(requests.table_changes("t", asked)) == PAGE
    path, _, query = requests.path.partition("?")
    assert path == "/v1/tables/t/changes"
    assert taken(query) == asked


def test_a_client_of_an_earlier_release_has_seen_what_it_has() -> None:
    asked = taken("since=5&epoch=2&rows=1&bytes=1")
    assert (asked.since, asked.epoch, asked.seen, asked.seen_epoch) == (5, 2, 0, -1)


@pytest.mark.parametrize("query", ["seen=-1", "seen=x", "seen_epoch=-2", "seen_epoch=2147483648"])
def test_what_cannot_have_been_seen_is_refused(query: str) -> None:
    with pytest.raises(MalformedRequest, match="seen"):
        taken(query)
