"""The preconditions and the dedupe window of one partition.

The log writer evaluates every batch that has publish headers, and every batch of a stream with
limits. The state is derived from the log: the batches loaded at the start, and those accepted since
then. A batch that the log did not store is rolled back.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final, Protocol

from bascule.model import StreamDefinition
from bascule.publish.acks import (
    ALL,
    ANY,
    DISCARDED_BYTES,
    DISCARDED_MESSAGES,
    LEADER,
    MALFORMED_SEQUENCE,
    MALFORMED_TTL,
    NO_KEY,
    NO_TABLE,
    TABLE_NOT_CAUGHT_UP,
    UNKNOWN_ACK_POLICY,
    UNSUPPORTED_HEADERS,
    WRONG_LAST_ID,
    AckError,
    AckFormat,
    Outcome,
    indeterminate,
    malformed_block,
    unsupported_header,
    wrong_last_sequence,
    wrong_stream,
)
from bascule.publish.headers import (
    EXPECTS_KEY_SEQUENCE,
    HAS_ID,
    HEADER_FIELDS,
    OF_A_BLOCK,
    HashKey,
    PublishHeaders,
)
from bascule.publish.preconditions import _hot, _hot_answers
from bascule.publish.preconditions.dedupe_window import DedupeWindow
from bascule.publish.preconditions.record_keys import (
    KEY_VERDICT,
    TableKeyCheck,
    number_keys,
    wrong_key_ranges,
)
from bascule.publish.stream_subjects import StreamSubjects
from bascule.publish.unstamped_batch import UnstampedBatch
from bascule.record.header import HEADER_BYTES

NO_KEY_OF_TABLE: Final = _hot.NO_KEY_OF_TABLE
UNKNOWN_VERSION: Final = _hot.UNKNOWN_VERSION
UNLIMITED: Final = (1 << 62) - 1
HEADER_NAME_SHOWN_BYTES: Final = 100
"""Most bytes of a header's name in an error ack: names are as long as their sender likes."""
_NO_HEADERS: Final = PublishHeaders(array("q"), 0)
_NO_WINDOW: Final = array("i")
_NO_KEYS: Final = array("q")


@dataclass(slots=True)
class PreconditionCounts:
    """For metrics. Counts only grow."""

    duplicates: int = 0
    """Messages whose id was stored before; acked again, not stored again."""
    expectations_failed: int = 0
    """Messages that expected another sequence, id or stream."""
    headers_refused: int = 0
    """Messages with a header that is malformed or asks for what this server cannot do."""
    closed_refused: int = 0
    """Messages that came while the stream was paused or read-only."""
    limit_refused: int = 0
    """Messages beyond the stream's rate, or beyond its size with `discard = new`."""
    ids_dropped_early: int = 0
    """Message ids dropped before the end of the window because there were too many."""

    def add(self, tally: list[int]) -> None:
        """Add how many records of a batch got each verdict."""
        self.duplicates += tally[_hot.DUPLICATE]
        self.expectations_failed += sum(tally[_hot.WRONG_SEQUENCE : _hot.NOT_A_NUMBER])
        self.expectations_failed += tally[_hot.WRONG_KEY_SEQUENCE]
        self.headers_refused += sum(tally[_hot.NOT_A_NUMBER : _hot.OVER_RECORDS])
        self.headers_refused += sum(tally[_hot.NO_TABLE : _hot.WRONG_KEY_SEQUENCE])
        self.headers_refused += tally[_hot.BAD_TTL]
        self.limit_refused += sum(tally[_hot.OVER_RECORDS : _hot.NO_TABLE])


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much of a batch the stream's limits allow, and the errors for the rest."""

    records: int = UNLIMITED
    bytes: int = UNLIMITED
    records_error: AckError = DISCARDED_MESSAGES
    bytes_error: AckError = DISCARDED_BYTES


NO_LIMITS: Final = BatchLimits()


class VersionLookup(Protocol):
    """The last records of a table's keys. Implemented by `tables`."""

    def find(self, keys: list[bytes], end_offset: int) -> array[int]:
        """Two numbers for each record key: the offset of its last record below `end_offset`, the
        end of the log, and whether that has a value. The offset is -1 for a key without a record,
        and `_hot.NO_KEY_OF_TABLE` for one that is none of the table. If the table has not caught
        up with the log, it is `_hot.UNKNOWN_VERSION`.

        Called on the log writer thread. Raises nothing.
        """
        ...


@dataclass(slots=True)
class Evaluation:
    """The outcome for a batch: the batch keeps the accepted records, the others are answered."""

    refusals: bytes
    """NATS operations to send once what they rest on is committed."""
    duplicates: bytes
    """Ack entries of messages stored before; record index i is offset `duplicates_base` + i."""
    duplicates_base: int
    duplicate_count: int
    leader_refusals: bytes = b""
    """As `refusals`, for messages whose ack rests on the leader's log alone."""
    outcome: Outcome | None = None
    """For `on_committed` of a batch of one message that is not stored again."""
    refused_entries: bytes = b""
    """Ack entries of the messages that `refusals` and `leader_refusals` answer."""
    refused_count: int = 0
    rests_on_log: bool = False
    """Whether a refusal rests on what the log has, with the accepted messages of the batch."""


class Preconditions:
    """The preconditions of one partition. Only the log writer thread uses it."""

    def __init__(
        self,
        definition: StreamDefinition,
        ack_format: AckFormat,
        hash_key: HashKey,
        subjects: StreamSubjects | None = None,
    ) -> None:
        """`subjects` of the streams on this node; without, the stream answers for all of them."""
        config = definition.config
        self.hash_key = hash_key
        self.counts = PreconditionCounts()
        self.key_versions: VersionLookup | None = None
        """Of the table that this stream is, once that is open."""
        self._definition = definition
        self._table_keys = TableKeyCheck(config) if config.table else None
        self._stream_hash = hash_key.hash(definition.name.encode())[0]
        self._ack_format = ack_format
        self._subjects = subjects
        self._window = DedupeWindow(
            ms_max=config.dedupe_window_ms, messages_max=config.dedupe_messages_max
        )
        self._previous_last_id = self._window.state[2:5]
        """The id of the log's last record before the last evaluation."""

    def configure(self, definition: StreamDefinition) -> None:
        """Apply the altered settings."""
        config = definition.config
        self._definition = definition
        self._table_keys = TableKeyCheck(config) if config.table else None
        self._window.ms_max = config.dedupe_window_ms
        self._window.messages_max = config.dedupe_messages_max

    def reset(self) -> None:
        """Forget all ids, before those of another state of the log are loaded."""
        config = self._definition.config
        self._window = DedupeWindow(
            ms_max=config.dedupe_window_ms, messages_max=config.dedupe_messages_max
        )
        self._previous_last_id = self._window.state[2:5]

    @property
    def ids(self) -> int:
        """The number of message ids in the window."""
        return min(len(self._window), self._window.messages_max)

    def load_batch(
        self, headers: PublishHeaders, *, base_offset: int, end_offset: int, timestamp: int
    ) -> None:
        """Add a batch of the log; called in the order of the log.

        First forgets what was older than the window when the batch was appended, as its leader did:
        an id may be in the log twice, further apart than the window.
        """
        window = self._window
        window.expire(timestamp)
        if window.ms_max and headers.has_ids():
            window.add(headers, base_offset=base_offset, end_offset=end_offset, timestamp=timestamp)
        window.state[4] = 0
        if headers.count:
            at = HEADER_FIELDS * (headers.count - 1)
            last = headers.rows[at : at + HEADER_FIELDS]
            if base_offset + last[0] == end_offset - 1 and last[1] & HAS_ID:
                window.state[2], window.state[3], window.state[4] = last[2], last[3], 1

    def leave_to_others(self, batch: UnstampedBatch) -> None:
        """Drop the ack entries of messages that expect another stream which receives them too.

        That stream answers. Must come before anything that may refuse the batch.
        """
        headers = batch.headers
        if self._subjects is None or headers is None or not batch.ack_entries:
            return
        rows, count = headers.rows, headers.count
        if not _hot_answers.count_other_streams(rows, count, self._stream_hash):
            return
        streams, patterns = array("q"), b""
        for name_hash in set(rows[7 : HEADER_FIELDS * count : HEADER_FIELDS]):
            subject = self._subjects.overlapping_subject(name_hash, self._definition).encode()
            if subject:
                streams.extend((name_hash, len(patterns), len(patterns) + len(subject)))
                patterns += subject
        if streams:
            verdicts = bytearray(batch.record_count)
            implied = (self._definition.config.literal_subject or "").encode()
            _hot_answers.mark_expecting(
                batch.data, HEADER_BYTES, batch.record_count, rows, count, streams, patterns,
                implied, verdicts,
            )  # fmt: skip
            numbers = array("q", range(batch.record_count))
            batch.ack_entries = _entries(batch.ack_entries, verdicts, numbers, _hot.ACCEPTED, 0)

    def evaluate(
        self,
        batch: UnstampedBatch,
        *,
        next_offset: int,
        now_ms: int,
        limits: BatchLimits = NO_LIMITS,
    ) -> Evaluation | None:
        """Remove refused and duplicate records from the batch; None where all are accepted.

        The batch keeps the ack entries of the accepted records. `rollback` must follow if the log
        does not store them.
        """
        window = self._window
        self._previous_last_id = window.state[2:5]
        headers = batch.headers or _NO_HEADERS
        rows, count = headers.rows, headers.count
        if count and not self._definition.config.acks:
            _hot_answers.keep_flags(rows, count, HAS_ID | EXPECTS_KEY_SEQUENCE)
        remembers = window.ms_max > 0 and headers.has_ids()
        if remembers:
            window.expire(now_ms)
            window.limit()
            window.reserve(count)
        next_id = window.state[1]  # An empty window counts from 0 again when it grows.
        verdicts = bytearray(batch.record_count)
        key_errors: dict[int, AckError] = {}
        if self._table_keys is not None:
            key_errors = self._table_keys.refuse(batch.data, batch.record_count, verdicts)
        numbers = array("q", bytes(8 * batch.record_count))
        keys = versions = _NO_KEYS
        if self.key_versions is not None and headers.expect_key_sequences():
            found, keys = number_keys(batch.data, batch.record_count, headers)
            versions = self.key_versions.find(found, next_offset)
        accepted = _hot.evaluate(
            batch.data, HEADER_BYTES, batch.record_count, rows, count, next_offset,
            self._stream_hash, limits.records, limits.bytes,
            window.ring, window.table if remembers else _NO_WINDOW, window.state, verdicts, numbers,
            self._definition.config.table, keys, versions,
        )  # fmt: skip
        if remembers and window.state[1] > next_id:
            window.note_batch(next_offset + accepted, now_ms)
        self.counts.ids_dropped_early = window.dropped_early
        if accepted == batch.record_count:
            return None
        evaluation = self._answer(
            batch, verdicts, numbers, next_offset, self._errors(limits) | key_errors
        )
        end = HEADER_BYTES
        if accepted:
            end = _hot.drop_records(batch.data, HEADER_BYTES, batch.record_count, verdicts)
        batch.data = batch.data[:end]
        batch.record_count = accepted
        return evaluation

    def answer_known(
        self, batch: UnstampedBatch, *, now_ms: int, committed_end: int, stored_end: int
    ) -> bytes:
        """Remove repetitions of stored messages from a batch that is about to be refused; return
        the replies to send now.

        Those of a message that is not committed, or not stored by the leader if that is what the
        ack waits for, are told that it may or may not be stored: what the batch is refused for may
        last, so nobody waits. The batch keeps the ack entries of the others, and not their records.
        """
        window, headers = self._window, batch.headers
        if headers is None or not headers.has_ids() or not window.ms_max:
            return b""
        window.expire(now_ms)
        window.limit()
        if not len(window):
            return b""
        if not self._definition.config.acks:
            _hot_answers.keep_flags(headers.rows, headers.count, HAS_ID | EXPECTS_KEY_SEQUENCE)
        replies, found, entries = b"", 0, batch.ack_entries
        oldest, error = window.oldest, indeterminate("its first attempt is not committed yet")
        for policy, end in ((LEADER, stored_end), (ALL, committed_end)):
            verdicts = bytearray(batch.record_count)
            numbers = array("q", range(batch.record_count))
            found = _hot.find_known(
                headers.rows, headers.count, self._stream_hash, window.ring, window.table, end,
                verdicts, numbers,
            )  # fmt: skip
            if not found:
                return b""
            if entries and batch.ack_policies & policy:
                stored = _entries(entries, verdicts, numbers, _hot.DUPLICATE, oldest)
                replies += self._ack_format.duplicates(
                    stored, base=oldest, count=found, policy=policy
                )
                unsure = _entries(entries, verdicts, numbers, _hot.NOT_COMMITTED, oldest)
                replies += self._ack_format.errors(unsure, error, count=found, policies=policy)
        batch.ack_entries = _entries(entries, verdicts, numbers, _hot.ACCEPTED, 0)
        batch.record_count -= found
        self.counts.duplicates += found
        if batch.on_committed is not None and not batch.record_count:
            is_stored = verdicts[-1] == _hot.DUPLICATE
            batch.on_committed(numbers[-1] if is_stored else -1, None if is_stored else error)
        return replies

    @property
    def checks_keys(self) -> bool:
        """Whether every batch has to be evaluated: the stream is a table."""
        return self._table_keys is not None

    def accept_without_headers(self) -> None:
        """Accept a batch without headers: the log's last record then has no id."""
        state = self._window.state
        self._previous_last_id = state[2:5]
        state[4] = 0

    def rollback(self, offset: int) -> None:
        """Undo the last evaluation: the log did not store its batch at `offset`."""
        self._window.rollback(offset)
        self._window.state[2:5] = self._previous_last_id

    def _errors(self, limits: BatchLimits) -> dict[int, AckError]:
        """The errors of the verdicts that always have the same one."""
        return {
            _hot.WRONG_ID: WRONG_LAST_ID,
            _hot.WRONG_STREAM: wrong_stream(self._definition.name),
            _hot.NOT_A_NUMBER: MALFORMED_SEQUENCE,
            _hot.NO_POLICY: UNKNOWN_ACK_POLICY,
            _hot.OVER_RECORDS: limits.records_error,
            _hot.OVER_BYTES: limits.bytes_error,
            _hot.NO_TABLE: NO_TABLE,
            _hot.NO_KEY: NO_KEY,
            _hot.NOT_CAUGHT_UP: TABLE_NOT_CAUGHT_UP,
            _hot.BAD_TTL: MALFORMED_TTL,
        }

    def _answer(
        self,
        batch: UnstampedBatch,
        verdicts: bytearray,
        numbers: array[int],
        next_offset: int,
        errors: dict[int, AckError],
    ) -> Evaluation:
        tally = [verdicts.count(verdict) for verdict in range(_hot.VERDICTS)]
        self.counts.add(tally)
        self.counts.headers_refused += sum(verdict >= KEY_VERDICT for verdict in verdicts)
        ack_entries = batch.ack_entries
        if batch.on_committed is not None:
            outcome = None
            if not tally[_hot.ACCEPTED]:
                outcome = _outcome(batch, verdicts, numbers[-1], errors)
            return Evaluation(b"", b"", 0, 0, outcome=outcome)
        if not ack_entries:
            return Evaluation(b"", b"", 0, 0)

        def entries(verdict: int, base: int, of: bytearray = verdicts) -> bytes:
            return _entries(ack_entries, of, numbers, verdict, base)

        refused = [(each, error) for each, error in errors.items() if each in verdicts]
        if tally[_hot.NOT_SUPPORTED]:
            refused += _unsupported(batch, verdicts)
        wrong = []
        if tally[_hot.WRONG_SEQUENCE]:
            wrong.append((entries(_hot.WRONG_SEQUENCE, next_offset - 1), next_offset - 1))
        if tally[_hot.WRONG_KEY_SEQUENCE]:
            for part, base in wrong_key_ranges(verdicts, numbers):
                wrong.append((entries(_hot.WRONG_KEY_SEQUENCE, base, part), base))

        def refusals(policies: int) -> bytes:
            found = [
                self._ack_format.errors(
                    entries(verdict, 0), error, count=verdicts.count(verdict), policies=policies
                )
                for verdict, error in refused
            ]
            found += [
                self._ack_format.wrong_sequence(
                    part, base=last, count=len(verdicts), policies=policies
                )
                for part, last in wrong
            ]
            return b"".join(found)

        duplicates, oldest = b"", 0
        if tally[_hot.DUPLICATE]:
            oldest = self._window.oldest
            duplicates = entries(_hot.DUPLICATE, oldest)
        refused_entries = b"".join(
            [entries(verdict, 0) for verdict, _ in refused] + [part for part, _ in wrong]
        )
        batch.ack_entries = entries(_hot.ACCEPTED, 0)
        return Evaluation(
            refusals(ANY & ~LEADER),
            duplicates,
            oldest,
            tally[_hot.DUPLICATE],
            refusals(LEADER) if batch.ack_policies & LEADER else b"",
            refused_entries=refused_entries,
            refused_count=len(verdicts),
            rests_on_log=bool(wrong) or tally[_hot.WRONG_ID] > 0,
        )


def _entries(
    ack_entries: bytes, verdicts: bytearray, numbers: array[int], verdict: int, base: int
) -> bytes:
    """The ack entries of records with `verdict`; see `_hot.split_ack_entries`."""
    out = bytearray(len(ack_entries))
    size = _hot.split_ack_entries(ack_entries, verdicts, numbers, verdict, base, out)
    return bytes(memoryview(out)[:size])


def _outcome(
    batch: UnstampedBatch, verdicts: bytearray, number: int, errors: dict[int, AckError]
) -> Outcome:
    """What a caller within this process is told of its last message, where none was accepted.

    `number` is that of `_hot.evaluate`.
    """
    verdict = verdicts[-1]
    if verdict == _hot.DUPLICATE:
        return Outcome(number, None)
    if verdict in (_hot.WRONG_SEQUENCE, _hot.WRONG_KEY_SEQUENCE):
        return Outcome(-1, wrong_last_sequence(number + 1))
    if verdict == _hot.NOT_SUPPORTED:
        return Outcome(-1, _unsupported(batch, verdicts)[-1][1])
    return Outcome(-1, errors[verdict])


def _unsupported(batch: UnstampedBatch, verdicts: bytearray) -> list[tuple[int, AckError]]:
    """A verdict and an error for each unsupported header; `verdicts` tells them apart."""
    headers = batch.headers or _NO_HEADERS
    names = array("q", bytes(8 * _hot_answers.NAMES_MAX))
    found = _hot_answers.group_unsupported(batch.data, headers.rows, headers.count, verdicts, names)
    errors = [(_hot.NOT_SUPPORTED, UNSUPPORTED_HEADERS)] if _hot.NOT_SUPPORTED in verdicts else []
    for number, name in enumerate(names[:found]):
        at = name >> 16
        size = min(name & (OF_A_BLOCK - 1), HEADER_NAME_SHOWN_BYTES)
        text = bytes(batch.data[at : at + size]).decode(errors="replace")
        error = malformed_block(text) if name & OF_A_BLOCK else unsupported_header(text)
        errors.append((_hot.VERDICTS + number, error))
    return errors
