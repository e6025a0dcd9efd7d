"""A Spark that is too old says so in one line, wherever the package meets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bascule.cli.pipeline.examples import example
from bascule.errors import UnsupportedSpark
from bascule.pipeline import spark_version

pyspark = pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

OLD = """
import sys
import pyspark

pyspark.__version__ = "4.1.3"
sys.modules["bascule.pipeline.source.data_source"] = None  # Spark 4.1 cannot import it
"""
SAID = (
    "bascule needs Spark 4.3 (pip install 'bascule[spark]'), found pyspark 4.1.3; an older Spark "
    "reads streams over its Kafka connector: docs/pipelines/kafka-connector.md"
)


def on_an_old_spark(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OLD + program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_spark_finds_a_source_that_says_which_spark_is_needed() -> None:
    """Spark imports every `pyspark_*` module. An error there would hide the sources of all."""
    done = on_an_old_spark(
        "from pyspark_bascule import DefaultSource\n"
        "from pyspark.sql.datasource import DataSource\n"
        "assert issubclass(DefaultSource, DataSource) and DefaultSource.name() == 'bascule'\n"
        "DefaultSource({'stream': 's'})\n"
    )
    assert done.stderr.splitlines()[-1] == f"bascule.errors.pipeline.UnsupportedSpark: {SAID}"


@pytest.mark.parametrize(
    "use",
    [
        "from bascule.pipeline import BasculeDataSource",
        "from bascule.pipeline import LakeDataSource",
        "from bascule.pipeline import archive",
        "from bascule.pipeline import watch",
        "from bascule.pipeline.source import BasculeDataSource",
        "from bascule.pipeline.session import local_session; local_session()",
    ],
)
def test_every_use_of_the_package_says_it(use: str) -> None:
    done = on_an_old_spark(use)
    assert done.stderr.splitlines()[-1].endswith(SAID)


def test_specs_and_checks_need_no_spark() -> None:
    done = on_an_old_spark("from bascule.pipeline import ArchiveSpec, TableSpec")
    assert done.returncode == 0, done.stderr


def test_a_declared_run_says_it_with_exit_code_2(tmp_path: pytest.TempPathFactory) -> None:
    path = f"{tmp_path}/p.toml"
    program = (
        "import pathlib\n"
        "from bascule.pipeline.declare.process import main\n"
        f"pathlib.Path({path!r}).write_text({example('archive')!r})\n"
        f"sys.exit(main([{path!r}, '--events']))\n"
    )
    done = on_an_old_spark(program)
    assert done.returncode == 2, done.stderr
    assert SAID in done.stdout


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [("4.3.0", True), ("4.3.0.dev0", True), ("4.10.1", True), ("5.0.0", True),
     ("4.2.1", False), ("4.1.3", False), ("3.5.6", False), ("unknown", False)],
)  # fmt: skip
def test_versions(monkeypatch: pytest.MonkeyPatch, version: str, is_enough: bool) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    if is_enough:
        spark_version.require_spark()
    else:
        with pytest.raises(UnsupportedSpark, match=r"needs Spark 4\.3"):
            spark_version.require_spark()
