"""The subjects of the streams of this node: which of them receive the same messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bascule.model import StreamDefinition, is_internal_stream
from bascule.publish.headers import HashKey
from bascule.wire.subjects import subjects_overlap

ONE: Final = "*"
REST: Final = ">"


class _Node:
    """The streams whose subjects begin with the same tokens."""

    __slots__ = ("children", "ending", "open_ended")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        """By the next token; `*` is one of them."""
        self.ending: dict[str, StreamDefinition] = {}
        """By name: those whose subjects end here."""
        self.open_ended: dict[str, StreamDefinition] = {}
        """By name: those whose subjects go on with `>`."""

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.ending or self.open_ended)

    def below(self) -> Iterator[StreamDefinition]:
        """All streams whose subjects have at least one more token."""
        yield from self.open_ended.values()
        for child in self.children.values():
            yield from child.ending.values()
            yield from child.below()

    def overlapping(self, tokens: Sequence[str], at: int) -> Iterator[StreamDefinition]:
        """The streams below that overlap the subject of `tokens`, which led here up to `at`."""
        if at == len(tokens):
            yield from self.ending.values()
            return
        token = tokens[at]
        if token == REST:
            yield from self.below()
            return
        yield from self.open_ended.values()
        if token == ONE:
            chosen = list(self.children.values())
        else:
            chosen = [self.children[each] for each in (token, ONE) if each in self.children]
        for child in chosen:
            yield from child.overlapping(tokens, at + 1)


class StreamSubjects:
    """All streams by the hash of the name, and as a tree of the tokens of their subjects.

    Only the event loop changes it. Log writers read it.
    """

    def __init__(self, hash_key: HashKey) -> None:
        self._hash_key = hash_key
        self._by_hash: dict[int, StreamDefinition] = {}
        self._root = _Node()

    def add(self, definition: StreamDefinition) -> None:
        """Add a stream, or replace its definition. The subject of a stream never changes."""
        self._by_hash[self._hash_of(definition)] = definition
        node = self._root
        tokens = definition.config.subject.split(".")
        for token in tokens:
            if token == REST:
                node.open_ended[definition.name] = definition
                return
            node = node.children.setdefault(token, _Node())
        node.ending[definition.name] = definition

    def remove(self, definition: StreamDefinition) -> None:
        """Remove a stream, if it is there."""
        self._by_hash.pop(self._hash_of(definition), None)
        path, node = [], self._root
        for token in definition.config.subject.split("."):
            if token == REST:
                break
            if token not in node.children:
                return
            path.append((node, token))
            node = node.children[token]
        node.ending.pop(definition.name, None)
        node.open_ended.pop(definition.name, None)
        for parent, token in reversed(path):
            if not parent.children[token].is_empty:
                break
            del parent.children[token]

    def overlapping(self, definition: StreamDefinition) -> list[StreamDefinition]:
        """Other streams that can receive a message of this one, by name; no internal ones.

        NATS delivers a message to one member of a queue group, so streams of one group do not
        overlap. The cost is that of the streams found, not of those that are there.
        """
        found = [
            other
            for other in self._root.overlapping(definition.config.subject.split("."), 0)
            if other.name != definition.name
            and not is_internal_stream(other.name)
            and not _in_one_group(definition, other)
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


def _in_one_group(one: StreamDefinition, other: StreamDefinition) -> bool:
    return one.config.group is not None and one.config.group == other.config.group
