"""Calls of nats.go's key-value client, by the program that `make foreign-clients` builds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from support.foreign_clients import INSTALLED

PROGRAM: Final = INSTALLED / "keyvalue"


class NatsGo:
    """One client."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, name: str, bucket: str = "", **arguments: Any) -> Any:
        """What the call returns, as JSON. Raises: CallFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"call": name, "bucket": bucket, **arguments}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise CallFailed(answer["error"], answer["kind"])
        return answer["found"]


class CallFailed(Exception):
    """The client returned an error; `kind` is its name if programs compare with that."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(f"{kind}: {text}" if kind else text)
        self.kind = kind


@contextmanager
def nats_go(url: str) -> Iterator[NatsGo]:
    """A client that is connected to the server."""
    process = subprocess.Popen(
        [PROGRAM, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield NatsGo(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
