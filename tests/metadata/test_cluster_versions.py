"""Which cluster version is in force, which nodes are refused, and what is written before it is."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace

import msgspec
import pytest

from bascule.cluster_version import HISTORY, NEWEST, OLDEST
from bascule.controller.metadata_machine import MetadataMachine
from bascule.errors import NeedsClusterVersion, NodeRefused, UnsupportedFormat
from bascule.metadata.apply import apply
from bascule.metadata.command_codec import (
    SINCE,
    SNAPSHOT_VERSION,
    decode_snapshot,
    encode_commands,
    encode_snapshot,
)
from bascule.metadata.commands import SetClusterId, SetClusterVersion, SetDrained
from bascule.metadata.image import Image
from bascule.metadata.requests import (
    Admit,
    Drain,
    LookUp,
    RaiseVersion,
    RegisterProcess,
    Resume,
    decide,
)
from bascule.metadata.versions import version_for_all
from bascule.model import NodeRegistration
from bascule.raft.messages import Entry, RaftSnapshot
from support.deciding_controller import DecidingController, registration


def supporting(node: int, oldest: int, newest: int, incarnation: int = 1) -> NodeRegistration:
    made = registration(node, incarnation)
    return replace(made, cluster_version_min=oldest, cluster_version_max=newest, version="9.8")


def cluster_of(*ranges: tuple[int, int]) -> DecidingController:
    """Nodes 1, 2, ... that support these versions."""
    controller = DecidingController()
    for node, (oldest, newest) in enumerate(ranges, 1):
        controller.submit(RegisterProcess(supporting(node, oldest, newest)))
    return controller


def raised(controller: DecidingController, members: tuple[int, ...]) -> int:
    controller.submit(RaiseVersion(members))
    return controller.image.cluster_version


# -- the version in force --------------------------------------------------------------------


def test_the_history_is_ascending_without_a_gap() -> None:
    assert [each.number for each in HISTORY] == list(range(OLDEST, NEWEST + 1))


def test_a_new_cluster_begins_with_the_oldest_version() -> None:
    assert Image().cluster_version == 1


def test_the_version_is_the_newest_that_all_nodes_support() -> None:
    assert raised(cluster_of((1, 3), (1, 2), (1, 4)), (1, 2, 3)) == 2
    assert raised(cluster_of((1, 3), (1, 1), (1, 4)), (1, 2, 3)) == 1


def test_nodes_that_are_away_count_too() -> None:
    controller = cluster_of((1, 3), (1, 1), (1, 3))
    controller.lose(2)
    assert raised(controller, (1, 2, 3)) == 1
    controller.submit(RegisterProcess(supporting(2, 1, 3, incarnation=2)))
    assert raised(controller, (1, 2, 3)) == 3


def test_a_founder_that_has_not_registered_may_have_any_release() -> None:
    controller = cluster_of((1, 3), (1, 3))
    assert raised(controller, (1, 2, 3)) == 1
    controller.submit(RegisterProcess(supporting(3, 1, 2)))
    assert raised(controller, (1, 2, 3)) == 2


def test_an_admitted_node_counts_before_it_registers() -> None:
    controller = cluster_of((1, 3))
    controller.submit(Admit(supporting(2, 1, 2)))
    assert raised(controller, (1,)) == 2


def test_a_node_of_an_earlier_release_supports_the_first_version() -> None:
    controller = cluster_of((1, 3), (1, 3))
    controller.register(3)
    assert raised(controller, (1, 2, 3)) == 1


def test_the_version_never_goes_down() -> None:
    controller = cluster_of((1, 3))
    assert raised(controller, (1,)) == 3
    assert decide(controller.image, RaiseVersion((1,))) == ()
    assert apply(controller.image, SetClusterVersion(2)).cluster_version == 3


def test_no_version_is_taken_that_a_node_does_not_support_any_more() -> None:
    image = cluster_of((1, 3), (1, 4)).image
    newer = replace(image.nodes[2], cluster_version_min=4)
    assert version_for_all(replace(image, nodes=image.nodes.insert(2, newer)), (1, 2)) == 1


# -- nodes that are refused ------------------------------------------------------------------


def test_a_release_that_is_too_old_is_refused() -> None:
    controller = cluster_of((1, 3))
    raised(controller, (1,))
    for request in (
        Admit(supporting(2, 1, 2)),
        RegisterProcess(supporting(1, 1, 2, incarnation=2)),
        LookUp(supporting(1, 1, 2)),
    ):
        with pytest.raises(
            NodeRefused,
            match=r"its release 9\.8 supports cluster version 1 to 2, and the cluster uses 3, "
            "which never goes down; start it with the release of the other nodes",
        ):
            decide(controller.image, request)
    assert decide(controller.image, Admit(supporting(2, 3, 5)))


def test_a_release_that_is_too_new_is_refused() -> None:
    controller = cluster_of((1, 1))
    for request in (
        Admit(supporting(2, 2, 3)),
        RegisterProcess(supporting(1, 2, 3, incarnation=2)),
    ):
        with pytest.raises(NodeRefused, match="uses 1; start it with a release that supports 1"):
            decide(controller.image, request)


def entry(index: int, payload: bytes) -> Entry:
    return Entry(index=index, term=1, kind=0, payload=payload)  # type: ignore[arg-type]


def test_an_earlier_release_stops_where_the_log_raises_the_version() -> None:
    found: list[int] = []
    machine = MetadataMachine(lambda *_: None, on_unsupported=found.append)
    machine.apply([entry(1, encode_commands([SetClusterId("c")], version=1))])
    later = encode_commands([SetClusterVersion(NEWEST + 1)], version=1)
    with pytest.raises(UnsupportedFormat, match=f"version {NEWEST + 1}, this Bascule reads up to"):
        machine.apply([entry(2, later)])
    assert found == [NEWEST + 1]
    assert machine.image.cluster_version == 1


def test_an_earlier_release_does_not_restore_the_snapshot_of_a_later_one() -> None:
    found: list[int] = []
    machine = MetadataMachine(lambda *_: None, on_unsupported=found.append)
    later = {
        "version": SNAPSHOT_VERSION + 1,
        "cluster_version": NEWEST + 1,
        "nodes": "other",
    }
    snapshot = RaftSnapshot(30, 1, None, (msgspec.msgpack.encode(later),))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedFormat):
        asyncio.run(machine.restore(snapshot))
    assert found == [NEWEST + 1]


# -- what is written -------------------------------------------------------------------------


def test_what_a_version_has_brought_is_there_and_has_a_default() -> None:
    for kind, names in SINCE.items():
        is_struct = issubclass(kind, msgspec.Struct)
        known = kind.__struct_fields__ if is_struct else [each.name for each in fields(kind)]
        for name, since in names.items():
            assert name in known
            assert OLDEST < since <= NEWEST


def test_a_snapshot_has_the_version_in_force() -> None:
    image = Image(cluster_version=NEWEST)
    assert decode_snapshot(list(encode_snapshot(image, ())))[0] == image


# -- what needs a version --------------------------------------------------------------------


def test_the_reason_of_a_drain_waits_for_its_version() -> None:
    controller = cluster_of((1, 2), (1, 1), (1, 1))
    with pytest.raises(
        NeedsClusterVersion,
        match=r"the reason of a drain needs cluster version 2, and the cluster uses 1: upgrade "
        r"node 2 \(release 9\.8\), node 3 \(release 9\.8\), or leave it out",
    ):
        controller.submit(Drain(1, empties=False, reason="a new kernel"))
    controller.submit(Drain(1, empties=False))
    assert controller.image.nodes[1].is_drained


def test_it_says_that_the_version_is_about_to_rise() -> None:
    controller = cluster_of((1, 2), (1, 2))
    with pytest.raises(NeedsClusterVersion, match="all nodes support it, so try again in a moment"):
        controller.submit(Drain(1, empties=False, reason="a new kernel"))


def test_a_drained_node_keeps_the_reason_until_it_goes_on() -> None:
    controller = cluster_of((1, 2), (1, 2))
    raised(controller, (1, 2))
    controller.submit(Drain(1, empties=False, reason="a new kernel"))
    assert decide(controller.image, Drain(1, empties=False)) == ()
    controller.submit(Drain(1, empties=True))
    controller.submit(RegisterProcess(supporting(1, 1, 2, incarnation=2)))
    node = controller.image.nodes[1]
    assert (node.is_drained, node.is_emptied, node.drain_reason) == (True, True, "a new kernel")
    assert decode_snapshot(list(encode_snapshot(controller.image, ())))[0] == controller.image
    controller.submit(RegisterProcess(supporting(1, 1, 2, incarnation=2)))
    controller.submit(Drain(1, empties=False, reason="another disk"))
    assert controller.image.nodes[1].drain_reason == "another disk"
    controller.submit(Resume(1))
    assert controller.image.nodes[1].drain_reason == ""


def test_a_later_field_is_not_written_before_its_version() -> None:
    command = SetDrained(1, 5, True, reason="lost on nodes of version 1")
    with pytest.raises(AssertionError, match="reason before its cluster version"):
        encode_commands([command], version=1)
