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
    """As `set`."""

    def __init__(self, items: Iterable[K] = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: K) -> None:
        self[item] = None

    def discard(self, item: K) -> None:
        dict.pop(self, item, None)

    def remove(self, item: K) -> None:
        del self[item]

    def pop(self) -> K:  # type: ignore[override]
        """Remove the last item and return it. Raises: KeyError if there is none."""
        return self.popitem()[0]

    def update(self, *others: Iterable[K]) -> None:  # type: ignore[override]
        for other in others:
            for item in other:
                self[item] = None

    def difference_update(self, *others: Iterable[K]) -> None:
        for other in others:
            for item in list(other):
                self.discard(item)

    def intersection_update(self, *others: Iterable[K]) -> None:
        self.difference_update(self.difference(self.intersection(*others)))

    def symmetric_difference_update(self, other: Iterable[K]) -> None:
        for item in OrderedSet(other):
            if item in self:
                self.discard(item)
            else:
                self.add(item)

    def isdisjoint(self, other: Iterable[K]) -> bool:
        return not any(item in self for item in other)

    def issubset(self, other: Iterable[K]) -> bool:
        return frozenset(self) <= frozenset(other)

    def issuperset(self, other: Iterable[K]) -> bool:
        return all(item in self for item in other)

    def union(self, *others: Iterable[K]) -> OrderedSet[K]:
        result = OrderedSet(self)
        result.update(*others)
        return result

    def difference(self, *others: Iterable[K]) -> OrderedSet[K]:
        found = frozenset().union(*others)
        return OrderedSet(item for item in self if item not in found)

    def intersection(self, *others: Iterable[K]) -> OrderedSet[K]:
        found = frozenset(self).intersection(*others)
        return OrderedSet(item for item in self if item in found)

    def symmetric_difference(self, other: Iterable[K]) -> OrderedSet[K]:
        result = OrderedSet(self)
        result.symmetric_difference_update(other)
        return result

    def __isub__(self, other: Iterable[K]) -> OrderedSet[K]:
        self.difference_update(other)
        return self

    def __iand__(self, other: Iterable[K]) -> OrderedSet[K]:
        self.intersection_update(other)
        return self

    def __ixor__(self, other: Iterable[K]) -> OrderedSet[K]:
        self.symmetric_difference_update(other)
        return self

    def __xor__(self, other: Iterable[K]) -> OrderedSet[K]:
        return self.symmetric_difference(other)

    def __le__(self, other: Iterable[K]) -> bool:
        return self.issubset(other)

    def __ge__(self, other: Iterable[K]) -> bool:
        return self.issuperset(other)

    def __lt__(self, other: Iterable[K]) -> bool:
        return frozenset(self) < frozenset(other)

    def __gt__(self, other: Iterable[K]) -> bool:
        return frozenset(self) > frozenset(other)

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

    def __ne__(self, other: object) -> bool:
        return not self == other


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
