"""Calls in child processes, which end with all that a call has left in memory."""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import TypeVar

T = TypeVar("T")


def call_in_child(function: Callable[[], T]) -> tuple[float, T]:
    """Call a function in a forked process; the CPU seconds of that process, and the result.

    The child has a copy of this process and starts in milliseconds. It has only the thread that
    calls, and must not wait for what another thread of this process holds.

    Raises: ChildProcessError where the process ends without a result; its stderr says why.
    """
    receiver, sender = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _call(function, sender)
    sender.close()
    try:
        result: T = receiver.recv()
    except EOFError:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        raise ChildProcessError(f"a child process ended with status {code}") from None
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        receiver.close()
    _, _, usage = os.wait4(child, 0)
    return usage.ru_utime + usage.ru_stime, result


def _call(function: Callable[[], object], sender: Connection) -> None:
    """Send the result, and end this process without any clean-up."""
    gc.disable()  # all memory goes back at once
    code = 1
    try:
        sender.send(function())
        code = 0
    except BaseException:  # boundary: the parent sees the status
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
