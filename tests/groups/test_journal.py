"""What is stored of a group of the consumer protocol, and what waits for it."""

from __future__ import annotations

from bascule.groups.consumer.journal import Journal
from bascule.groups.consumer.messages import MemberAnswer, ReadyAnswer, StoreRecords
from bascule.wire.error_codes import ErrorCode

ANSWER = MemberAnswer(member_id="m", epoch=1)


def numbers(journal: Journal) -> list[int]:
    return [each.number for each in journal.take_effects() if isinstance(each, StoreRecords)]


def test_an_answer_waits_for_what_it_tells() -> None:
    journal = Journal(lambda key: b"x")
    assert not journal.answer(0, ANSWER), "nothing has changed"
    journal.touch("m")
    assert journal.answer(1, ANSWER)
    (stored,) = journal.take_effects()
    assert isinstance(stored, StoreRecords)
    assert stored.records == (("m", b"x"),)
    journal.on_stored(stored.number, ErrorCode.NONE)
    assert journal.take_effects() == [ReadyAnswer(1, ANSWER)]
    assert journal.is_settled


def test_what_cannot_be_stored_waits_for_the_next_request() -> None:
    journal = Journal(lambda key: b"x")
    journal.touch("m")
    assert journal.answer(1, ANSWER)
    assert numbers(journal) == [1]
    journal.on_stored(1, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    journal.begin()
    (refused,) = journal.take_effects()
    assert refused == ReadyAnswer(1, MemberAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert not journal.is_settled
    assert journal.answer(2, ANSWER)
    assert numbers(journal) == [2]


def test_what_cannot_be_stored_is_tried_again_when_it_is_time() -> None:
    journal = Journal(lambda key: b"x")
    journal.touch("m")
    journal.begin()
    journal.on_stored(1, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    journal.begin()
    assert numbers(journal) == [1]
    journal.try_again()
    journal.begin()
    assert numbers(journal) == [2]
