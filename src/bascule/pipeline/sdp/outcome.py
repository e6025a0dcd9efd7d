"""Whether a run COMPLETED, from what `spark-pipelines run` printed and how it ended. Pure.

Spark 4.3.0, whenever a Python source read rows: the run ends as COMPLETED on the server, then the
client meets an observation named `__python_accumulator__` that it does not know, raises
[UNKNOWN_RESPONSE] and exits with 1. A run that failed exits with 1 too. So neither the exit code
nor the last lines alone tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_COMPLETED: Final = re.compile(r"\bRun is COMPLETED\b")
_FAILED: Final = re.compile(r"\bRun (?:is|has) (?:FAILED|STOPPED|CANCELED|TERMINATED)\b")
_KNOWN_FAULT: Final = re.compile(r"UNKNOWN_RESPONSE.*__python_accumulator__", re.DOTALL)
_ERROR: Final = re.compile(
    r"^(?:Error: |[\w.]+(?:Error|Exception): ).*|bascule\.errors\.[\w.]+: .*"
)


@dataclass(frozen=True, slots=True)
class ProjectOutcome:
    """How a run ended."""

    completed: bool
    exit_code: int
    """Of `spark-pipelines`."""
    corrected: bool
    """It exited with an error after a run that COMPLETED."""
    error: str = ""
    """The line that says most about a run that did not."""


def outcome_of(lines: Iterable[str], exit_code: int) -> ProjectOutcome:
    """Judge the whole output, standard error included."""
    text = "\n".join(lines)
    completed = bool(_COMPLETED.search(text)) and not _FAILED.search(text)
    known_fault = bool(_KNOWN_FAULT.search(text))
    if completed and exit_code != 0 and not known_fault:
        completed = False  # something else went wrong behind it
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
    return (found or ["it ended without saying that its run COMPLETED"])[0]
