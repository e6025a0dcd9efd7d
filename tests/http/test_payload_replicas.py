"""A payload over HTTP, of which another replica has to give a part. Nodes are in this process."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from bascule.datastream.ports import FoundFile
from bascule.errors import PayloadMissing
from bascule.http.payloads.reads import PayloadsApi
from bascule.storage.payloads.block_steps import run_through
from bascule.storage.payloads.verified_file import VerifiedFile
from bascule.wire.datastream.messages import FetchPayload
from datastream.test_payload_contents import FIRST, ID, MIB, SECOND, append, payload, read
from support.payload_nodes import STREAM, PayloadNode, payload_nodes


class First:
    """Node 1 as its HTTP listener knows it."""

    def __init__(self, nodes: dict[int, PayloadNode], *, has_file: bool) -> None:
        self._nodes = nodes
        self._has_file = has_file

    async def find_file(self, stream: str, partition: int, offset: int) -> FoundFile:
        async def opened(start: int, end: int) -> VerifiedFile:
            if not self._has_file:
                raise PayloadMissing(ID, "this replica")
            node = self._nodes[1]
            fetch = FetchPayload(stream, partition, ID, offset, start, end)
            place = node.place_of(stream, partition)
            steps = node.streams.find(place, fetch, is_node=False)
            return await asyncio.to_thread(run_through, steps)

        return FoundFile(payload(FIRST), "http://elsewhere", opened)

    def bootstrap(self) -> str:
        return f"{self._nodes[2].address},{self._nodes[3].address}"


async def get(first: First) -> tuple[dict[str, str], bytes]:
    """The headers and the body of the answer."""
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "headers": [],
        "path_params": {"name": STREAM, "partition": "0", "offset": "0"},
    }  # fmt: skip
    request = Request(scope)
    body = b""

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal body
        body += message.get("body", b"")

    response = await PayloadsApi(first).handle_payload(request)
    await response(scope, request.receive, send)
    return dict(response.headers), body


@pytest.mark.parametrize("has_file", [True, False], ids=["the rest", "all"])
def test_another_replica_gives_no_other_content_of_the_id(tmp_path: Path, has_file: bool) -> None:
    with payload_nodes(tmp_path, 3) as nodes:
        append(nodes[1], FIRST)
        append(nodes[2], SECOND)
        append(nodes[3], FIRST)
        read(nodes[1], FetchPayload(STREAM, 0, offset=0, start=1))  # its blocks have checksums now
        found = nodes[1].store.payloads.find_at(0)
        assert found is not None
        with Path(found.path).open("r+b") as file:
            file.seek(MIB + 5)
            file.write(bytes(9))
        headers, body = asyncio.run(get(First(nodes, has_file=has_file)))
    assert headers["bascule-payload-crc32c"] == f"{payload(FIRST).crc:08x}"
    assert body == FIRST
