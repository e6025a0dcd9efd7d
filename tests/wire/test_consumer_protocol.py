"""What members of a group tell each other, read by and from other clients."""

from __future__ import annotations

import warnings

import pytest
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import RemoteProtocolError
from bascule.wire.messages.group.consumer_protocol import (
    ConsumerSubscription,
    OwnedTopic,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import (
        ConsumerProtocolAssignment,
        ConsumerProtocolSubscription,
    )


def test_other_clients_read_a_subscription() -> None:
    subscription = ConsumerSubscription(
        ["flights", "gates"], b"\0\0\0\7", [OwnedTopic("flights", [0, 2])], 7
    )
    data = encode_subscription(subscription)
    theirs = ConsumerProtocolSubscription.decode(data)
    assert theirs.topics == ["flights", "gates"]
    assert [(t.topic, t.partitions) for t in theirs.owned_partitions] == [("flights", [0, 2])]
    assert theirs.generation_id == 7
    # It knows version 0 alone.
    old = ConsumerProtocolMemberMetadata.decode(data)
    assert (old.subscription, old.user_data) == (["flights", "gates"], b"\0\0\0\7")
    assert encode_subscription(decode_subscription(data)) == data


def test_subscriptions_of_other_clients_are_read() -> None:
    old = decode_subscription(ConsumerProtocolMemberMetadata(0, ["flights"], b"").encode())
    assert (list(old.topics), list(old.owned_partitions), old.generation_id) == (
        ["flights"],
        [],
        -1,
    )
    later = (
        (9).to_bytes(2, "big") + encode_subscription(ConsumerSubscription(["flights"]))[2:] + b"?"
    )
    assert decode_subscription(later).topics == ["flights"]
    for malformed in (b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\3\0\0\0\7"):
        with pytest.raises(RemoteProtocolError):
            decode_subscription(malformed)


def test_assignments_go_both_ways() -> None:
    data = encode_assignment({"flights": [1, 3]})
    for kind in (ConsumerProtocolMemberAssignment, ConsumerProtocolAssignment):
        found = [(each.topic, each.partition) for each in kind.decode(data).partitions()]
        assert found == [("flights", 1), ("flights", 3)]
    theirs = ConsumerProtocolMemberAssignment(0, [("gates", [5])], b"").encode()
    assert decode_assignment(theirs) == {"gates": [5]}
    assert decode_assignment(b"") == {}


@pytest.mark.parametrize(
    "data", [b"\0", b"\0\1\0\0\0\2\0\1a", b"\0\1\x7f\xff\xff\xff", b"\xff\xff\0\0\0\0"]
)
def test_what_is_cut_short_is_refused(data: bytes) -> None:
    for read in (decode_subscription, decode_assignment):
        with pytest.raises(RemoteProtocolError):
            read(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (decode_subscription, decode_assignment):
        try:
            read(data)
        except RemoteProtocolError:
            pass
