"""MessagePack values: one map per value, checked by msgspec against the declared type."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from bascule.pipeline.values.python_types import decimal_check, python_type, read_type
from bascule.pipeline.values.record_decoder import RecordDecoder


class MsgpackDecoder(RecordDecoder):
    """Decodes maps with the declared names as keys. Other keys are ignored."""

    def __init__(self, kind: pa.StructType) -> None:
        one = msgspec.msgpack.Decoder(python_type("msgpack", kind)).decode
        super().__init__(kind, read_type("msgpack", kind), one, decimal_check(kind))
