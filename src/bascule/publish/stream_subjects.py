"""The subjects of the streams of this node: which of them receive the same messages."""

from __future__ import annotations

from bascule.model import StreamDefinition, is_internal_stream
from bascule.publish.headers import HashKey
from bascule.wire.subjects import subjects_overlap

_WILDCARDS = ("*", ">")


class StreamSubjects:
    """All streams by name, by the hash of the name, and by the first token of the subject.

    Only the event loop changes it. Log writers read it.
    """

    def __init__(self, hash_key: HashKey) -> None:
        self._hash_key = hash_key
        self._by_hash: dict[int, StreamDefinition] = {}
        self._by_token: dict[str, dict[str, StreamDefinition]] = {}
        """First token of the subject -> name -> definition. With thousands of streams, one whose
        first token is a name is compared with few others."""

    def add(self, definition: StreamDefinition) -> None:
        """Add a stream, or replace its definition. The subject of a stream never changes."""
        self._by_hash[self._hash_of(definition)] = definition
        self._by_token.setdefault(_first_token(definition), {})[definition.name] = definition

    def remove(self, definition: StreamDefinition) -> None:
        self._by_hash.pop(self._hash_of(definition), None)
        self._by_token.get(_first_token(definition), {}).pop(definition.name, None)

    def overlapping(self, definition: StreamDefinition) -> list[StreamDefinition]:
        """Other streams that can receive a message of this one, by name; no internal ones.

        NATS delivers a message to one member of a queue group, so streams of one group do not
        overlap.
        """
        token = _first_token(definition)
        tokens = list(self._by_token) if token in _WILDCARDS else [token, *_WILDCARDS]
        found = [
            other
            for key in tokens
            for other in self._by_token.get(key, {}).values()
            if other.name != definition.name
            and not is_internal_stream(other.name)
            and not _in_one_group(definition, other)
            and subjects_overlap(definition.config.subject, other.config.subject)
        ]
        return sorted(found, key=lambda each: each.name)

    def overlapping_subject(self, name_hash: int, definition: StreamDefinition) -> str:
        """The subject of the stream with this hash of its name, if a message of this one can have
        it; else an empty text."""
        other = self._by_hash.get(name_hash)
        if (
            other is None
            or other.name == definition.name
            or _in_one_group(definition, other)
            or not subjects_overlap(other.config.subject, definition.config.subject)
        ):
            return ""
        return other.config.subject

    def _hash_of(self, definition: StreamDefinition) -> int:
        return self._hash_key.hash(definition.name.encode())[0]


def _first_token(definition: StreamDefinition) -> str:
    return definition.config.subject.partition(".")[0]


def _in_one_group(one: StreamDefinition, other: StreamDefinition) -> bool:
    return one.config.group is not None and one.config.group == other.config.group
