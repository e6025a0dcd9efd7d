"""Which nodes are asked, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from bascule.errors import BasculeError, Broken, DiskFull, UnknownStream
from bascule.wire.datastream.messages import ReplicaAddress


class Places:
    """Addresses of nodes with a replica. Those that have failed come last."""

    def __init__(self, bootstrap: str) -> None:
        """`bootstrap` are addresses of client listeners, `host:port,...`."""
        self._addresses = dict.fromkeys(bootstrap.split(","), 0)

    @property
    def order(self) -> list[str]:
        """The addresses, the best first."""
        return sorted(self._addresses, key=lambda address: self._addresses[address])

    def learn(self, replicas: Sequence[ReplicaAddress], *, leader_last: bool = False) -> None:
        """These have replicas; others are asked only when these have failed."""
        known = [each.address for each in replicas if each.address]
        if leader_last:
            known.reverse()
        others = dict(self._addresses)
        self._addresses = {address: others.pop(address, 0) for address in known}
        self._addresses |= {address: failures + 1 for address, failures in others.items()}

    def on_failed(self, address: str) -> None:
        """It did not answer, or went away."""
        worst = max(self._addresses.values(), default=0)
        self._addresses[address] = worst + 1

    def prefer(self, address: str) -> None:
        """It answers: ask it first."""
        self._addresses = {address: 0, **{k: v for k, v in self._addresses.items() if k != address}}


class Answers:
    """What nodes say that are asked one after the other, until one takes a payload."""

    def __init__(self, asked: Sequence[str]) -> None:
        """`asked`: the addresses, in this order."""
        self._asked = asked
        self._errors: dict[str, BasculeError] = {}
        self._named: set[str] | None = None

    def on_failed(self, address: str, error: BasculeError) -> None:
        """It does not take it."""
        self._errors[address] = error

    def on_elsewhere(self, replicas: Sequence[ReplicaAddress]) -> None:
        """These have replicas, says one without. The rest is not asked."""
        self._named = {each.address for each in replicas if each.address}

    @property
    def last(self) -> BasculeError:
        """The last error."""
        return next(reversed(self._errors.values()), Broken("no node is known"))

    @property
    def is_unknown(self) -> bool:
        """Whether no node knows the stream."""
        errors = self._errors.values()
        is_all = len(errors) == len(self._asked)
        return is_all and all(isinstance(each, UnknownStream) for each in errors)

    @property
    def is_full(self) -> bool:
        """Whether all nodes with a replica have answered that they have no room."""
        errors = self._errors
        if not errors or not all(isinstance(each, DiskFull) for each in errors.values()):
            return False
        return errors.keys() >= (set(self._asked) if self._named is None else self._named)

    @property
    def full(self) -> DiskFull | None:
        """What one of them says that has no room."""
        errors = self._errors.values()
        return next((each for each in errors if isinstance(each, DiskFull)), None)
