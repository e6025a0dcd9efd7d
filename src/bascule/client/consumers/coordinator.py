"""Requests to the coordinator of a group, whichever node it is now. Blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from bascule.client.connection import ASK_TIMEOUT_S, connect_any, connect_named
from bascule.config.addresses import format_address
from bascule.errors import Broken, Closed, NotSupported
from bascule.host.real import RealClock
from bascule.log_connection import LogConnection
from bascule.wire.error_codes import ErrorCode, code_name
from bascule.wire.messages.find_coordinator import FindCoordinatorRequest
from bascule.wire.messages.group.join_group import JoinGroupRequest
from bascule.wire.schema import Message, Request

BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 1.0
CHECK_S: Final = 3.0
"""While a join waits for other members: how often to ask whether the coordinator has moved."""
FIND_VERSION: Final = 3
"""Of FindCoordinator: the last one with a single key."""
_MOVED: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_CLOCK: Final = RealClock()

ResponseT = TypeVar("ResponseT", bound=Message)


class CoordinatorLink:
    """A connection to the coordinator, opened when needed. One request at a time; thread-safe.

    Where the coordinator moves, dies or loads, a request is sent again, up to `timeout` seconds.
    """

    def __init__(
        self, bootstrap: str, group: str, *, timeout: float, answer_s: float = ASK_TIMEOUT_S
    ) -> None:
        """A node that does not answer within `answer_s` is given up, and another one asked."""
        self._answer_s = answer_s
        self._bootstrap = bootstrap
        self._group = group
        self._timeout = timeout
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._connection: LogConnection | None = None
        self._heard = 0
        """When the request began, or a coordinator that it waits for was last heard of, in ns."""

    def request(
        self,
        request: Request[ResponseT],
        codes_of: Callable[[ResponseT], Iterable[int]],
        *,
        version: int | None = None,
        answer_s: float | None = None,
        timeout: float | None = None,
    ) -> ResponseT:
        """Send `request` until a coordinator answers it. `codes_of` are a response's error codes.

        `answer_s` is how long this answer may take. Raises: Broken after `timeout` seconds, Closed.
        """
        timeout = self._timeout if timeout is None else timeout
        with self._lock:
            self._heard, backoff = _CLOCK.monotonic_ns(), BACKOFF_S_MIN
            while True:
                self._check_open()
                try:
                    return self._ask(request, codes_of, version, answer_s or self._answer_s)
                except Broken as error:
                    self._drop()
                    self._check_open()
                    if _CLOCK.monotonic_ns() - self._heard > timeout * 1e9:
                        raise Broken(
                            f"group {self._group!r} has had no coordinator for {timeout:g} s: "
                            f"{error}; see that a majority of the nodes runs"
                        ) from error
                self._stopped.wait(backoff)
                backoff = min(2 * backoff, BACKOFF_S_MAX)

    def abort(self) -> None:
        """End the request in progress, and refuse later ones. Thread-safe; idempotent."""
        self._stopped.set()
        connection = self._connection
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        """Close the connection. A later request opens another one, unless `abort` was called."""
        with self._lock:
            self._drop()

    def _check_open(self) -> None:
        if self._stopped.is_set():
            raise Closed(f"this member of group {self._group!r} is closed")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(
        self,
        request: Request[ResponseT],
        codes_of: Callable[[ResponseT], Iterable[int]],
        version: int | None,
        answer_s: float,
    ) -> ResponseT:
        connection = self._connect()
        connection.send(request, version=version)
        waited, step = 0.0, min(CHECK_S, answer_s)
        while not connection.wait_readable(step):
            waited += step
            if waited >= answer_s:
                raise Broken(f"{connection.address} did not answer for {answer_s:g} s")
            if self._find_address() != connection.address:
                raise Broken(f"{connection.address} does not coordinate the group any more")
            if answer_s > ASK_TIMEOUT_S:
                self._heard = _CLOCK.monotonic_ns()
            self._check_open()
        response: Any = connection.receive()
        for code in codes_of(response):
            if code in _MOVED:
                raise Broken(f"{connection.address} says {code_name(code)}")
        return response  # type: ignore[no-any-return]

    def _connect(self) -> LogConnection:
        if self._connection is None:
            host, port = self._find()
            connection = connect_named(host, port, timeout=self._answer_s)
            if not connection.serves(JoinGroupRequest):
                connection.close()
                raise NotSupported(
                    f"{connection.address} does not coordinate groups with members: upgrade it, or "
                    "read with a consumer's name"
                )
            self._connection = connection
            if self._stopped.is_set():
                connection.abort()
        return self._connection

    def _find_address(self) -> str:
        return format_address(*self._find())

    def _find(self) -> tuple[str, int]:
        connection = connect_any(self._bootstrap, timeout=self._answer_s)
        try:
            request = FindCoordinatorRequest(key=self._group)
            found = connection.request(request, version=FIND_VERSION)
        finally:
            connection.close()
        if found.error_code:
            raise Broken(f"{connection.address} says {code_name(found.error_code)}")
        return found.host, found.port
