"""The last events of a run: what the simulator does, and what the nodes log."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bascule.sim.cluster.world.loop import NS, PROCESS, ClusterLoop

LAST_EVENTS: Final = 200
_UNREAD: Final = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing")
"""Switches of `logging` for what it finds out for each record."""
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Record(logging.LogRecord):
    """Only what a trace shows. Where and when something is logged in the real world takes most of
    the time of a record."""

    def __init__(
        self, name: str, level: int, _: str, __: int, msg: object, args: Any, exc_info: Any,
        *___: Any, **____: Any,
    ) -> None:  # fmt: skip
        self.name, self.msg, self.args, self.exc_info = name, str(msg), args, exc_info
        self.levelno, self.levelname = level, logging.getLevelName(level)


class ClusterTrace(logging.Handler):
    """Keeps the last events, and passes each to `write` if that is given."""

    def __init__(self, loop: ClusterLoop, write: Callable[[str], None] | None = None) -> None:
        super().__init__(logging.DEBUG if write else logging.INFO)
        self._loop = loop
        self._write = write
        self._last: deque[tuple[int, str, str | logging.LogRecord]] = deque(maxlen=LAST_EVENTS)

    def note(self, who: str, text: str) -> None:
        """An event of the simulator."""
        self._add(who, text)

    def emit(self, record: logging.LogRecord) -> None:
        """An event that a node logs. One with an exception is a bug."""
        process = PROCESS.get()
        who = "--" if process is None else process.name
        self._add(who, record)
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self._loop.report(
                "no exception", f"{who}: {record.getMessage()}: {type(error).__name__}: {error}"
            )

    def _add(self, who: str, what: str | logging.LogRecord) -> None:
        entry = self._loop.now_ns, who, what
        self._last.append(entry)
        if self._write is not None:
            self._write(_line(*entry))

    def last(self) -> list[str]:
        """The last events as lines."""
        return [_line(*entry) for entry in self._last]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Get what the nodes log, alone."""
        logger = logging.getLogger("bascule")
        before = logger.level, logger.propagate, list(logger.handlers)
        logger.setLevel(self.level)
        logger.propagate = False
        logger.handlers = [self]
        # Nobody reads where in the code an event was logged, and finding it takes long.
        known = {name: getattr(logging, name) for name in _UNREAD}
        vars(logging).update(dict.fromkeys(_UNREAD))
        factory = logging.getLogRecordFactory()
        logging.setLogRecordFactory(_Record)
        try:
            yield
        finally:
            logging.setLogRecordFactory(factory)
            vars(logging).update(known)
            logger.level, logger.propagate, logger.handlers = before
            logger.setLevel(before[0])


def _line(now_ns: int, who: str, what: str | logging.LogRecord) -> str:
    if isinstance(what, logging.LogRecord):
        extra = {name: value for name, value in vars(what).items() if name not in _STANDARD}
        text = f"[{what.levelname.lower()}] {what.getMessage()} {extra or ''}".rstrip()
        if what.exc_info:
            text += "\n" + logging.Formatter().formatException(what.exc_info)
    else:
        text = what
    return f"{now_ns / NS:12.6f} {who:>5} {text}"
