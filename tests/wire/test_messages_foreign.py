"""Every message in every served version, against foreign encoders and decoders."""

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
    is_known_to_kafka_python,
    kafka_python_again,
    kafka_python_bytes,
    kio_again,
    our_bytes,
    plain,
    structures,
)


def versions_of(chosen: list[tuple[type[Message], int]]) -> pytest.MarkDecorator:
    params = [pytest.param(k, v, id=f"{k.__name__}-{v}") for k, v in chosen]
    return pytest.mark.parametrize(("kind", "version"), params)


EVERY_VERSION = versions_of(list(cases()))
KNOWN = [case for case in cases() if is_known_to_kafka_python(case[0])]
KIO_ALONE = [case for case in cases() if not is_known_to_kafka_python(case[0])]


@versions_of(KNOWN)
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


@versions_of(KIO_ALONE)
@settings(max_examples=20)
@given(data=st.data())
def test_bytes_agree_with_kio_where_kafka_python_has_no_codec(
    kind: type[Message], version: int, data: st.DataObject
) -> None:
    message: Any = data.draw(structures(kind, version))
    for each in (message, *getattr(message, "groups", ())):
        if hasattr(each, "error_code"):
            each.error_code = data.draw(st.sampled_from([0, 35, 110]))  # kio knows codes only
    ours = our_bytes(message, version)
    assert kio_again(kind, version, ours) == ours
    assert plain(decode(kind, version, memoryview(ours))) == plain(message)


@EVERY_VERSION
def test_kio_reads_and_repeats_our_bytes(kind: type[Message], version: int) -> None:
    ours = our_bytes(kind(), version)
    again = kio_again(kind, version, ours)
    assert again is None or again == ours
