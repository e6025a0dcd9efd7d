"""Decides whether a run COMPLETED, from the output of `spark-pipelines run` and its exit code.
Pure.

In Spark 4.3.0 a run with a Python source ends as COMPLETED on the server. Then the client receives
an observation named `__python_accumulator__`, raises [UNKNOWN_RESPONSE] and exits with 1. A failed
run exits with 1 too. So neither the exit code nor the last lines are sufficient.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bascule.pipeline.worker_errors import worker_error

_COMPLETED: Final = re.compile(r"\bRun is COMPLETED\b")
_FAILED: Final = re.compile(r"\bRun (?:is|has) (?:FAILED|STOPPED|CANCELED|TERMINATED)\b")
_KNOWN_FAULT: Final = re.compile(r"UNKNOWN_RESPONSE.*__python_accumulator__", re.DOTALL)
_ERROR: Final = re.compile(
    r"^(?:Error: |[\w.]+(?:Error|Exception): ).*|bascule\.errors\.[\w.]+: .*"
)


@dataclass(frozen=True, slots=True)
class ProjectOutcome:
    """The outcome of a run."""

    completed: bool
    exit_code: int
    """Exit code of `spark-pipelines`."""
    corrected: bool
    """Whether the program exited with an error after a COMPLETED run."""
    error: str = ""
    """The most relevant line of a run that did not complete."""


def outcome_of(lines: Iterable[str], exit_code: int) -> ProjectOutcome:
    """Evaluate the whole output, including standard error."""
    text = "\n".join(lines)
    completed = bool(_COMPLETED.search(text)) and not _FAILED.search(text)
    known_fault = bool(_KNOWN_FAULT.search(text))
    if completed and exit_code != 0 and not known_fault:
        completed = False  # another error followed
    return ProjectOutcome(
        completed=completed,
        exit_code=exit_code,
        corrected=completed and exit_code != 0,
        error="" if completed else _error_in(text),
    )


def _error_in(text: str) -> str:
    found = [match[0] for line in text.splitlines() if (match := _ERROR.search(line.strip()))]
    ours = [line for line in found if "bascule.errors." in line]
    if ours:
        return ours[0].partition(": ")[2]
    if raised := worker_error(text):
        return raised
    return (found or ["the output does not report that the run COMPLETED"])[0]
