"""Ends a child process with its parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def _load_libc() -> ctypes.CDLL | None:
    """Load libc before the fork: between fork and exec nothing may be imported."""
    try:
        return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    except OSError:
        return None


_LIBC: Final = _load_libc()


def end_with_parent(parent: int) -> Callable[[], None]:
    """For `preexec_fn` of a child of process `parent`: the kernel kills the child when the parent
    ends. Linux only.

    The kernel takes the end of the thread that starts a process for the end of its parent, so the
    main thread must start it. SIGKILL ends a child that is stopped or hangs, too.
    """

    def set_signal() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            # The parent ended before the call.
            os._exit(1)

    return set_signal
