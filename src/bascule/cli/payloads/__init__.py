"""`bascule put` and `bascule get`: files of any size as payloads of a stream."""

from __future__ import annotations

from bascule.cli.payloads.get import get
from bascule.cli.payloads.put import put

__all__ = ["get", "put"]
