"""Publish headers: message ids, expectations and ack policies in the headers of messages.

The names are JetStream's; their case does not matter. Every other header that begins with `Nats-`
is refused and not ignored, whether this server knows its name or not (`Nats-Incr`,
`Nats-Batch-Id`): a publisher that sets one relies on it. Excepted are the headers that request
nothing, because servers and clients add them to what they deliver (`_hot._requests_nothing`).
Headers that begin with `Bascule-Payload-` are refused, too: only the node links payloads. So is a
malformed header block with a line that asks for something: no line of it has an effect.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

from bascule.publish.headers import _hot
from bascule.record.header import HEADER_BYTES

HEADER_FIELDS: Final = _hot.HEADER_FIELDS
HAS_ID: Final = _hot.HAS_ID
EXPECTS_KEY_SEQUENCE: Final = _hot.EXPECTS_KEY_SEQUENCE
OF_A_BLOCK: Final = _hot.OF_A_BLOCK
_NOTHING: Final = array("q")


@dataclass(frozen=True, slots=True)
class PublishHeaders:
    """The headers of one batch's records, in the order of the records."""

    rows: array[int]
    """`HEADER_FIELDS` numbers for each row, and one spare row."""
    count: int

    def has_ids(self) -> bool:
        """Whether a record has a message id."""
        return _hot.has_flags(self.rows, self.count, HAS_ID)

    def expect_key_sequences(self) -> bool:
        """Whether a record expects its key to have a certain last sequence."""
        return _hot.has_flags(self.rows, self.count, EXPECTS_KEY_SEQUENCE)


class HashKey:
    """The random 16-byte key of the hashes of message ids, in the form compiled code needs."""

    __slots__ = ("numbers",)

    def __init__(self, key: bytes) -> None:
        assert len(key) == 16
        self.numbers = array("Q", key)

    def hash(self, text: bytes) -> tuple[int, int]:
        """The 128-bit hash of a message id or a name, as two signed numbers."""
        out = array("q", (0, 0))
        _hot.hash_text(text, self.numbers, out)
        return out[0], out[1]


def read_publish_headers(
    batch: memoryview,
    record_count: int,
    hash_key: HashKey,
    *,
    expected: array[int] = _NOTHING,
    own_links: bool = False,
) -> PublishHeaders:
    """The headers of an uncompressed batch's records.

    `expected` has pairs of a record's index and the offset its envelope expects. `own_links`: the
    node itself has set the headers that link a payload.
    """
    rows = array("q", bytes(8 * _hot.HEADER_FIELDS * (record_count + 1)))
    count = _hot.read_publish_headers(
        batch, HEADER_BYTES, record_count, hash_key.numbers, expected, rows, own_links
    )
    assert count >= 0, "the records are complete"
    return PublishHeaders(rows, count)
