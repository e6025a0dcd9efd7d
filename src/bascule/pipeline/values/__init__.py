"""Record values as typed columns: bytes of JSON, MessagePack, Avro, Protobuf or Arrow to structs.

    spec = ValueSpec.from_options({"valueformat": "json", "valueschema": "tail string, delay int"})
    spec.ddl()                     # struct<tail:string,delay:int>
    decoder = spec.decoder()
    decoded = decoder.decode(pa.array([b'{"tail": "N1"}', b'{"tail": 1}', None]))
    decoded.values                 # [{"tail": "N1", "delay": None}, None, None]
    decoded.bad, decoded.reasons   # [1], ["expected `str | null`, got `int` - at `$.tail`"]

The schema is declared, never guessed. What a value becomes depends on that value alone, not on the
values around it: where many are decoded in one step (Arrow's JSON reader takes a batch at once),
one that could disturb its neighbours never gets that far. A value that does not parse, or that
holds what its column cannot, is told by its row and a reason, and its row is null; a null value is
a null row and not bad. Nothing a value holds raises, ends a process or takes unbounded memory.

The rules of conversion, format by format: docs/pipelines/values.md. No Spark here, and nothing
heavy (pyarrow, fastavro, protobuf) is imported before a spec is asked for its type or decoder.
"""

from bascule.pipeline.values.model import DecodedValues, ValueDecoder, ValueEncoder
from bascule.pipeline.values.spec import VALUE_OPTIONS, ValueSpec

__all__ = ["VALUE_OPTIONS", "DecodedValues", "ValueDecoder", "ValueEncoder", "ValueSpec"]
