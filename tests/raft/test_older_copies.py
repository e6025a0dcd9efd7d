"""A member whose disk was replaced by an older copy says so, and takes no further part."""

from __future__ import annotations

import copy

import pytest

from bascule.errors import LostEntries
from bascule.host.real import RealRandom
from bascule.raft.codec import decode, encode
from bascule.raft.effects import Role
from bascule.raft.membership import Members
from bascule.raft.messages import LOST_TERM, AnyMessage, AppendReply
from bascule.raft.multi.bundle import Bundle
from bascule.raft.node import RaftNode
from raft.test_joining import CONFIG, Group


def passed(message: AppendReply) -> AnyMessage:
    """What arrives of it at a peer."""
    sent = Bundle(3, 1, 1, 0, 0, 0, 0, 0, 0, messages=((1, message),))
    ((_, found),) = decode(encode(sent)).messages
    return found


def group_of_three() -> Group:
    """Node 1 leads; everything is committed everywhere."""
    members = Members.of(1, 2, 3)
    group = Group(CONFIG, {1: members, 2: members, 3: members})
    group.nodes[1].campaign()
    group.carry_out(1)
    group.deliver()
    assert group.propose(5) == 5
    group.tick(5)
    assert group.nodes[3].commit == group.nodes[1].log.last
    return group


def test_a_member_with_an_older_copy_finds_it_by_the_next_heartbeat() -> None:
    group = group_of_three()
    older = copy.deepcopy(group.stores[3])
    confirmed = group.nodes[1].log.last + 5
    assert group.propose(5) == 5
    group.tick(5)
    group.nodes[3] = RaftNode(3, CONFIG, older.load(), RealRandom(3))
    with pytest.raises(LostEntries, match=r"node remove 3 --force --yes.*--join") as caught:
        group.tick(5)
    assert (caught.value.node, caught.value.confirmed) == (3, confirmed)
    ready = group.nodes[3].ready()
    assert ready is not None
    (told,) = ready.send
    assert isinstance(told, AppendReply)
    assert told.hint_term == LOST_TERM
    assert passed(told) == told
    with pytest.raises(LostEntries) as heard:
        group.nodes[1].step(told)
    assert (heard.value.node, heard.value.last) == (3, confirmed - 5)
    assert group.nodes[1].role is Role.LEADER


def test_a_member_that_restarts_with_its_own_disk_goes_on() -> None:
    group = group_of_three()
    group.nodes[3] = RaftNode(3, CONFIG, group.stores[3].load(), RealRandom(3))
    group.tick(5)
    assert group.propose(5) == 5
    group.tick(5)
    assert group.nodes[3].commit == group.nodes[1].log.last
