"""Fixtures of every tier: the twins of the hot modules, and the tier of each test by its folder."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from support import children, slow_first, spark_java, timeouts
from support.twins import Twin, TwinMissing, load_twin

TESTS = Path(__file__).parent
TIER_BY_FOLDER = {
    "sim": "tier2",
    "interop": "tier3",
    "e2e": "tier3",
    "spark": "tier3",
    "foreign": "tier3",
}

# No test asserts a wall time, so no deadline. The usual run repeats itself exactly; `make fuzz`
# rolls new dice and prints how to repeat a failure.
settings.register_profile(
    "usual", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "exhaustive",
    deadline=None,
    max_examples=5_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("usual")


def pytest_configure(config: pytest.Config) -> None:
    # Of every Spark that a test starts, in this process or with a program of its own.
    os.environ.update(spark_java.environment())
    for plugin in (children, slow_first, timeouts):
        config.pluginmanager.register(plugin)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the transcripts in tests/transcripts anew instead of comparing with them",
    )
    parser.addoption(
        "--torture",
        action="store_true",
        help="damage every byte instead of samples",
    )
    parser.addoption("--rounds", type=int, help="of kill -9 in the tests of torture")
    parser.addoption("--payload-mib", type=int, help="size of their payloads")
    parser.addoption("--seed", type=int, help="of the dice in the tests of torture")
    parser.addoption(
        "--write-seconds",
        action="store_true",
        help="write the time of each file of tier 3 into tests/file_seconds.json",
    )
    parser.addoption(
        "--order-seed", type=int, help="run the tests in a random order, the same for the same seed"
    )


@pytest.fixture
def transcript(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`transcript(name, text)` holds `text` against tests/transcripts/<name>.txt."""

    def check(name: str, text: str) -> None:
        path = TESTS / "transcripts" / f"{name}.txt"
        if request.config.getoption("--rewrite"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no transcript {path.name} yet: run pytest with --rewrite"
        assert text == path.read_text(), f"{path.name} differs; if it should, use --rewrite"

    return check


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed: int | None = config.getoption("--order-seed")
    if seed is not None:
        random.Random(seed).shuffle(items)
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if tier := TIER_BY_FOLDER.get(folder):
            item.add_marker(getattr(pytest.mark, tier))


def pytest_collection_finish() -> None:
    """Keep what the collection has made out of every garbage collection of the tests.

    That are some million objects: a full collection takes half a second with them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", params=["compiled", "interpreted"])
def twin(request: pytest.FixtureRequest) -> Twin:
    """Which twin the test runs on; a test that takes `hot` runs once on each."""
    name: Twin = request.param
    if name == "compiled" and os.environ.get("BASCULE_PURE") == "1":
        pytest.skip("BASCULE_PURE=1: there is no compiled twin")
    return name


@pytest.fixture(scope="session")
def hot(twin: Twin) -> Callable[[str], ModuleType]:
    """Loader of a hot module as `twin`: `hot("record")` is `bascule.record._hot`."""

    def load(module: str) -> ModuleType:
        try:
            return load_twin(module, twin)
        except TwinMissing as missing:
            pytest.fail(str(missing))

    return load
