"""Requests to a node's HTTP listener, as the tests make them."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any


def call(url: str, method: str = "GET", body: object = None, *, seconds: float = 30.0) -> Any:
    """The JSON value that the node answers; None for an empty answer.

    Raises:
        urllib.error.HTTPError: the answer is an error; its text is a note of the exception.
        OSError: no whole answer came: the node is not there, or it died while it answered.
    """
    text = get(
        urllib.request.Request(
            url,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"content-type": "application/json"},
        ),
        seconds=seconds,
    )
    return json.loads(text) if text else None


def get(request: str | urllib.request.Request, *, seconds: float = 30.0) -> str:
    """The body of the answer, as text; raises as `call` does."""
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            body: bytes = response.read()
    except urllib.error.HTTPError as error:
        error.add_note(error.read().decode())
        raise
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer is not whole: {error!r}") from error
    return body.decode()


def told(error: Exception) -> str:
    """The exception and the end of what the node answered with it."""
    return " ".join([repr(error), *(note[-400:] for note in getattr(error, "__notes__", ()))])


def troubled_parts(health: Mapping[str, Any]) -> list[dict[str, str]]:
    """Parts of a node's health that are not ok, but the disk, which other programs may fill."""
    return [p for p in health["parts"] if p["state"] != "ok" and p["part"] != "disk"]
