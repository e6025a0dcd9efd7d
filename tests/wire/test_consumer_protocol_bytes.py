"""Subscriptions and assignments of classic members, byte for byte."""

from __future__ import annotations

import pytest

from bascule.errors import RemoteProtocolError
from bascule.wire.messages.group.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    subscription_version,
)

SUBSCRIPTION = (
    b"\0\3"  # version
    b"\0\0\0\2\0\7flights\0\6hotels"
    b"\0\0\0\2me"  # data of the assignor
    b"\0\0\0\1\0\7flights\0\0\0\2\0\0\0\1\0\0\0\4"
    b"\0\0\0\x09"  # generation
    b"\0\4rack"
)


def test_a_subscription_is_read() -> None:
    found = decode_subscription(SUBSCRIPTION)
    assert list(found.topics) == ["flights", "hotels"]
    assert [(each.topic, list(each.partitions)) for each in found.owned_partitions] == [
        ("flights", [1, 4])
    ]
    assert (found.generation_id, found.rack_id) == (9, "rack")
    assert subscription_version(SUBSCRIPTION) == 3


def test_a_newer_version_is_read_as_the_newest_that_is_known() -> None:
    newer = b"\0\7" + SUBSCRIPTION[2:] + b"what comes later"
    assert decode_subscription(newer) == decode_subscription(SUBSCRIPTION)


def test_versions_before_have_less() -> None:
    oldest = b"\0\0\0\0\0\1\0\7flights\xff\xff\xff\xff"
    found = decode_subscription(oldest)
    assert (list(found.topics), list(found.owned_partitions), found.user_data) == (
        ["flights"],
        [],
        None,
    )


@pytest.mark.parametrize("size", range(len(SUBSCRIPTION)))
def test_what_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_subscription(SUBSCRIPTION[:size])


def test_a_negative_version_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="version -1"):
        decode_subscription(b"\xff\xff" + SUBSCRIPTION[2:])


@pytest.mark.parametrize("version", [0, 1, 3, 9])
def test_assignments_are_read_again(version: int) -> None:
    partitions = {"flights": [0, 3], "hotels": [1]}
    assert decode_assignment(encode_assignment(partitions, version)) == partitions
    assert decode_assignment(b"") == {}


def test_an_assignment_has_the_bytes_of_kafka() -> None:
    assert encode_assignment({"flights": [1, 4]}, 1) == (
        b"\0\1\0\0\0\1\0\7flights\0\0\0\2\0\0\0\1\0\0\0\4\xff\xff\xff\xff"
    )
