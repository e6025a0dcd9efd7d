"""Every message in every version served, against encoders and decoders nobody here wrote."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.wire.codec import decode
from bascule.wire.messages.api_versions import ApiVersionsResponse
from bascule.wire.schema import Message
from support.foreign_messages import (
    cases,
    kafka_python_again,
    kafka_python_bytes,
    kio_again,
    our_bytes,
    plain,
    structures,
)

EVERY_VERSION = pytest.mark.parametrize(
    ("kind", "version"), [pytest.param(k, v, id=f"{k.__name__}-{v}") for k, v in cases()]
)


@EVERY_VERSION
@settings(max_examples=4)
@given(data=st.data())
def test_bytes_agree_with_kafka_python(
    kind: type[Message], version: int, data: st.DataObject
) -> None:
    message: Any = data.draw(structures(kind, version))
    if isinstance(message, ApiVersionsResponse):
        message.error_code = 0  # with an error kafka-python reads the rest as version 0
    ours = our_bytes(message, version)
    assert ours == kafka_python_bytes(message, version)
    assert kafka_python_again(kind, version, ours) == ours
    assert plain(decode(kind, version, memoryview(ours))) == plain(message)


@EVERY_VERSION
def test_kio_reads_and_repeats_our_bytes(kind: type[Message], version: int) -> None:
    ours = our_bytes(kind(), version)
    again = kio_again(kind, version, ours)
    assert again is None or again == ours
