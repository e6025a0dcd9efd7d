"""Sets and maps that keep the order of their insertions.

The order of a `set` of objects depends on their addresses, and that of an `rpds` map on a random
number of the process. Neither promises one, and the production code relies on none; but a seed has
to repeat a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class OrderedSet(dict[K, None]):
    """As `set`, as far as the production code uses it."""

    def __init__(self, items: Iterable[K] = ()) -> None:
        super().__init__((item, None) for item in items)

    def add(self, item: K) -> None:
        self[item] = None

    def discard(self, item: K) -> None:
        self.pop(item, None)

    def remove(self, item: K) -> None:
        del self[item]

    def update(self, *others: Iterable[K]) -> None:  # type: ignore[override]
        for other in others:
            for item in other:
                self[item] = None

    def difference_update(self, other: Iterable[K]) -> None:
        for item in list(other):
            self.pop(item, None)

    def union(self, *others: Iterable[K]) -> OrderedSet[K]:
        result = OrderedSet(self)
        result.update(*others)
        return result

    def difference(self, other: Iterable[K]) -> OrderedSet[K]:
        found = frozenset(other)
        return OrderedSet(item for item in self if item not in found)

    def __ior__(self, other: Iterable[K]) -> OrderedSet[K]:  # type: ignore[override]
        self.update(other)
        return self

    def __or__(self, other: Iterable[K]) -> OrderedSet[K]:  # type: ignore[override]
        return self.union(other)

    def __sub__(self, other: Iterable[K]) -> OrderedSet[K]:
        return self.difference(other)

    def __and__(self, other: Iterable[K]) -> OrderedSet[K]:
        found = frozenset(other)
        return OrderedSet(item for item in self if item in found)

    def __ror__(self, other: Iterable[K]) -> frozenset[K]:  # type: ignore[override]
        return frozenset(other) | frozenset(self)

    def __rsub__(self, other: Iterable[K]) -> frozenset[K]:
        return frozenset(other) - frozenset(self)

    def __rand__(self, other: Iterable[K]) -> frozenset[K]:
        return frozenset(other) & frozenset(self)

    def copy(self) -> OrderedSet[K]:
        return OrderedSet(self)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))

    def __eq__(self, other: object) -> bool:
        return (
            frozenset(self) == other if isinstance(other, frozenset) else dict.__eq__(self, other)
        )


class OrderedMap(dict[K, V]):
    """As `rpds.HashTrieMap`, as far as the production code uses it: a change makes another map."""

    def insert(self, key: K, value: V) -> OrderedMap[K, V]:
        result = OrderedMap(self)
        result[key] = value
        return result

    def discard(self, key: K) -> OrderedMap[K, V]:
        result = OrderedMap(self)
        dict.pop(result, key, None)
        return result

    def remove(self, key: K) -> OrderedMap[K, V]:
        result = OrderedMap(self)
        del result[key]
        return result

    def update(self, other: Mapping[K, V]) -> OrderedMap[K, V]:  # type: ignore[override]
        result = OrderedMap(self)
        dict.update(result, other)
        return result


class OrderedKeys(dict[K, None]):
    """As `rpds.HashTrieSet`, as far as the production code uses it."""

    def __init__(self, items: Iterable[K] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def insert(self, item: K) -> OrderedKeys[K]:
        if item in self:
            return self
        result = OrderedKeys[K]()
        dict.update(result, self)
        result[item] = None
        return result

    def discard(self, item: K) -> OrderedKeys[K]:
        if item not in self:
            return self
        result = OrderedKeys[K]()
        dict.update(result, self)
        del result[item]
        return result

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()
