"""TableReads, with an API key of Bascule's own: a batch of reads of tables by key.

Both bodies are MessagePack; `wire.tables.read_batches` has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bascule.wire.schema import Message, Records, Request, Versions


@dataclass(slots=True)
class TableReadsResponse(Message):
    API_KEY: ClassVar[int] = 1003
    VERSIONS: ClassVar[Versions] = Versions("0")
    body: Records = None


@dataclass(slots=True)
class TableReadsRequest(Request[TableReadsResponse]):
    API_KEY: ClassVar[int] = 1003
    VERSIONS: ClassVar[Versions] = Versions("0")
    RESPONSE: ClassVar[type[Message]] = TableReadsResponse
    body: Records = None
