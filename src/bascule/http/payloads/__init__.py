"""Payloads over HTTP: reading those of records, whole or in ranges."""

from __future__ import annotations

from bascule.http.payloads.reads import PayloadsAdmin, PayloadsApi

__all__ = ["PayloadsAdmin", "PayloadsApi"]
