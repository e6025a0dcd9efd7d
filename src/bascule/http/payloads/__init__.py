"""Payloads over HTTP: storing them, and reading those of records, whole or in ranges."""

from __future__ import annotations

from bascule.http.payloads.ports import PayloadsAdmin
from bascule.http.payloads.reads import PayloadsApi

__all__ = ["PayloadsAdmin", "PayloadsApi"]
