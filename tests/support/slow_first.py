"""Files that take long begin first: a plugin of pytest.

In tier 3 a file stays in one process of pytest-xdist. Where a long one begins last, the other
processes wait for it. `tests/file_seconds.json` holds what the files took when all of them ran last
with `--write-seconds`; only their order follows from it, and a file without a figure begins first.
It needs `--no-loadscope-reorder`: pytest-xdist orders files by their number of tests otherwise.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
STORED = TESTS / "file_seconds.json"

_seconds = pytest.StashKey[defaultdict[str, float]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_seconds] = defaultdict(float)
    if config.getoption("--write-seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Clock(config.stash[_seconds]))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files of tier 3; the order of the tests of a file stays."""
    if config.getoption("--order-seed") is not None or not items:
        return
    if any(item.get_closest_marker("tier3") is None for item in items):
        return
    seconds = json.loads(STORED.read_text())
    items.sort(key=lambda item: -seconds.get(name_of(item.path), float("inf")))


def pytest_sessionfinish(session: pytest.Session) -> None:
    measured = session.config.stash[_seconds]
    if measured:
        seconds = json.loads(STORED.read_text()) | {
            name: round(spent, 1) for name, spent in measured.items() if (TESTS / name).exists()
        }
        present = {name: spent for name, spent in seconds.items() if (TESTS / name).exists()}
        STORED.write_text(json.dumps(present, indent=2, sort_keys=True) + "\n")


def name_of(path: Path) -> str:
    """The path of a file below the folder of the tests."""
    return path.relative_to(TESTS).as_posix()


class Clock:
    """Adds up what the tests of each file take, set-up and clean-up included."""

    def __init__(self, seconds: defaultdict[str, float]) -> None:
        self._seconds = seconds

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("::", 1)[0].removeprefix("tests/")
        if name.startswith(("e2e/", "interop/", "spark/", "torture/", "foreign/", "backup/")):
            self._seconds[name] += report.duration
