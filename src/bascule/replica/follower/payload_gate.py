"""A follower appends a link only when it has the payload; see `storage.payloads`."""

from __future__ import annotations

from collections.abc import Callable

from bascule.errors import CorruptData
from bascule.record.header import LENGTH_PREFIX_BYTES
from bascule.record.payload_links import PayloadLink, links_of, may_have_links
from bascule.replica.follower.followed_partition import WholeBatches, whole_batches
from bascule.replica.partition import Partition
from bascule.storage.payloads.payload_log import PayloadLog

GetPayload = Callable[[Partition, PayloadLink, Callable[[Exception | None], None]], None]
"""Gets the payload of a link from another replica, and calls back once it is whole, or with the
reason why it is not. Any thread may call it, and it calls back on any."""
NOTHING = WholeBatches(0, -1, -1)


def before_missing(
    partition: Partition, records: memoryview, arrived: WholeBatches
) -> tuple[WholeBatches, list[PayloadLink]]:
    """The batches of `arrived` before the first link whose payload is missing here, and the links
    of the batch with it. Damaged batches pass; appending them says what is wrong."""
    store = partition.log
    assert isinstance(store, PayloadLog)
    at = 0
    while at < arrived.size:
        length = int.from_bytes(records[at + 8 : at + LENGTH_PREFIX_BYTES], "big")
        stop = at + LENGTH_PREFIX_BYTES + length
        batch = records[at:stop]
        if may_have_links(batch):
            try:
                missing = store.payloads.missing(links_of(batch))
            except CorruptData:
                missing = []
            if missing:
                return (whole_batches(records[:at]) if at else NOTHING), missing
        at = stop
    return arrived, []
