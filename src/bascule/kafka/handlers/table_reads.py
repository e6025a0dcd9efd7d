"""TableReads: a batch of reads of tables by key."""

from __future__ import annotations

from collections.abc import Awaitable

from bascule.errors import RemoteProtocolError
from bascule.kafka.handlers.context import Context
from bascule.table_results import TableValues
from bascule.wire.messages.table_reads import TableReadsRequest, TableReadsResponse
from bascule.wire.tables.read_batches import decode_reads, encode_answers


def handle_table_reads(
    request: TableReadsRequest, context: Context
) -> TableReadsResponse | Awaitable[TableReadsResponse]:
    """Raises: RemoteProtocolError."""
    if context.tables is None or not isinstance(request.body, (bytes, memoryview)):
        raise RemoteProtocolError("reads of tables are not served here")
    reads = decode_reads(request.body)
    present = context.tables.read_now(reads)
    if present is not None:
        return TableReadsResponse(encode_answers(present))
    return _answered(context.tables.read(reads))


async def _answered(coming: Awaitable[list[TableValues | None]]) -> TableReadsResponse:
    return TableReadsResponse(encode_answers(await coming))
