"""Which nodes are asked, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

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
