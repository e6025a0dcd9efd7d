"""Shell completion: names of streams and consumers, asked from the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from bascule.errors import BasculeError
from bascule.model import is_internal_stream

if TYPE_CHECKING:
    from bascule.client import SyncClient

TIMEOUT_SECONDS: Final = 2.0
"""A shell that waits longer for the TAB key seems to hang."""


def stream_names(ctx: Any, arguments: list[str], incomplete: str) -> list[str]:
    """Names of streams; of internal ones after an underscore."""
    return _ask(ctx, incomplete, lambda client: (s.definition.name for s in client.streams()))


def table_names(ctx: Any, arguments: list[str], incomplete: str) -> list[str]:
    """Names of tables."""
    return _ask(ctx, incomplete, lambda client: client.tables())


def consumer_names(ctx: Any, arguments: list[str], incomplete: str) -> list[str]:
    """Names of groups and of consumers with committed offsets."""
    return _ask(ctx, incomplete, lambda client: (group.name for group in client.groups()))


def _ask(ctx: Any, incomplete: str, names: Callable[[SyncClient], Iterable[str]]) -> list[str]:
    """The names that begin with `incomplete`; none without a node: a shell shows no errors."""
    import bascule

    try:
        with bascule.connect_sync(ctx.params.get("server"), timeout=TIMEOUT_SECONDS) as client:
            found = sorted(set(names(client)))
    except (BasculeError, OSError):
        return []
    internal = incomplete.startswith("_")
    return [
        n for n in found if n.startswith(incomplete) and (internal or not is_internal_stream(n))
    ]
