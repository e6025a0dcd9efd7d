"""Typed record values: decodes JSON, MessagePack, Avro, Protobuf or Arrow bytes to structs.

    spec = ValueSpec.from_options({"valueformat": "json", "valueschema": "tail string, delay int"})
    spec.ddl()                     # struct<tail:string,delay:int>
    decoder = spec.decoder()
    decoded = decoder.decode(pa.array([b'{"tail": "N1"}', b'{"tail": 1}', None]))
    decoded.values                 # [{"tail": "N1", "delay": None}, None, None]
    decoded.bad, decoded.reasons   # [1], ["expected `str | null`, got `int` - at `$.tail`"]

The schema is declared, never inferred. The result for a value depends on that value alone and not
on the values around it. Where many values are decoded in one step (Arrow's JSON reader takes a
batch), a value that could affect others is removed before. A malformed value, or one that does not
fit its column, is reported by row and reason, and its row is null. A null value is a null row and
not malformed. No value can raise, end the process or use unbounded memory.

docs/pipelines/values.md has the conversion rules of each format. This package does not import
Spark, and it imports pyarrow, fastavro and protobuf only when a spec is asked for its type or
decoder.
"""

from bascule.pipeline.values.model import DecodedValues, ValueDecoder, ValueEncoder
from bascule.pipeline.values.spec import VALUE_OPTIONS, ValueSpec

__all__ = ["VALUE_OPTIONS", "DecodedValues", "ValueDecoder", "ValueEncoder", "ValueSpec"]
