"""`bascule table`: tables, their keys and values."""

from __future__ import annotations

from bascule.cli.tables.commands import tables

__all__ = ["tables"]
