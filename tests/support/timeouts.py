"""Time limits of tests: a plugin of pytest over pytest-timeout, whose method `signal` it replaces.

A test that takes too long fails, and the run goes on. pytest-timeout alone has four gaps:

* It raises what Hypothesis takes for a failing example. Hypothesis then repeats the example and
  shrinks it, this time without a limit. `TimedOut` passes through Hypothesis.
* It raises once. A handler that catches it, or clean-up that blocks, then blocks for ever. Here the
  limit is raised again until the test has ended.
* A failed test has no limit for the clean-up of its fixtures. Here it has.
* Code that never returns to the interpreter cannot be interrupted. Some time after the limit the
  process ends, with the stacks of all threads on standard error; pytest-xdist starts another one
  and goes on.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest
from _pytest.outcomes import OutcomeException
from pytest_timeout import is_debugging

CLEAN_UP_SECONDS_MAX = 120.0
"""Limit of the clean-up after a test, and the time after which a limit is raised again."""
DEAD_SECONDS_MAX = 240.0
"""From the limit to the end of a process that has not come back to the interpreter."""

_standard_error = pytest.StashKey[int]()
_has_timed_out = pytest.StashKey[bool]()
_exit_status = pytest.StashKey[int]()


class TimedOut(OutcomeException):
    """The test has reached its limit.

    Not a subclass of Exception, nor what `pytest.fail` raises: code under test and Hypothesis catch
    those.
    """


def pytest_configure(config: pytest.Config) -> None:
    # Output is not captured now; while a test runs, descriptor 2 is a file.
    config.stash[_standard_error] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_exit_status] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_standard_error])
    del config.stash[_standard_error]
    # Python waits for threads at its end, and those of a test that timed out may never end. (The
    # workers of pytest-xdist are killed after some seconds.)
    if config.stash.get(_has_timed_out, False) and not hasattr(config, "workerinput"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[_exit_status])


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Start the timer of one test."""
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None  # pytest-timeout does it
    _start(item, settings.timeout, f"the test took longer than {settings.timeout:g} s")
    return True


def pytest_timeout_cancel_timer() -> None:
    """Stop the timer: the test has ended, or it has failed and is about to be cleaned up."""
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Limit the clean-up as well, whether or not the test has failed."""
    seconds = CLEAN_UP_SECONDS_MAX
    _start(item, seconds, f"the clean-up after the test took longer than {seconds:g} s")
    try:
        yield
    finally:
        pytest_timeout_cancel_timer()


def _start(item: pytest.Item, seconds: float, text: str) -> None:
    def on_alarm(number: int, frame: FrameType | None) -> None:
        if is_debugging():
            return
        item.config.stash[_has_timed_out] = True
        faulthandler.dump_traceback(item.config.stash[_standard_error])
        raise TimedOut(text)

    signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds, CLEAN_UP_SECONDS_MAX)
    faulthandler.dump_traceback_later(
        seconds + DEAD_SECONDS_MAX, file=item.config.stash[_standard_error], exit=True
    )
