"""Decodes Protobuf messages described at run time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from bascule.pipeline.values.protobuf.schema import find_message, message_reader
from bascule.pipeline.values.record_decoder import RecordDecoder


class ProtobufDecoder(RecordDecoder):
    """Decodes messages. Unknown fields are ignored. Unset fields are null or their default."""

    def __init__(self, descriptors: bytes, message: str, kind: pa.StructType) -> None:
        descriptor = find_message(descriptors, message)
        super().__init__(kind, kind, self._one)
        self._parse = GetMessageClass(descriptor).FromString
        self._row_of = message_reader(descriptor)

    def _one(self, value: bytes) -> Any:
        try:
            message = self._parse(value)
        except DecodeError as error:
            raise ValueError(str(error)) from None
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise ValueError(f"required fields are missing: {missing}")
        return self._row_of(message)
