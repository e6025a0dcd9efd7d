"""`examples/flights.ipynb`: clean as it is kept, and run cell by cell by a Jupyter kernel."""

from __future__ import annotations

import io
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bascule.cli.demo.flights import data_directory, sum_of_distance
from support.processes import Node

pytestmark = pytest.mark.tier3
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOK = EXAMPLES / "flights.ipynb"
COUNT = 5_000
KERNEL = {
    "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    "display_name": "this Python",
    "language": "python",
}


@pytest.fixture
def jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Jupyter that knows this Python alone, and leaves nothing in anybody's home."""
    kernel = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps(KERNEL))
    for name in ("JUPYTER_PATH", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    folder = tmp_path / "examples"
    left = shutil.ignore_patterns("lake*", "checkpoints", "data", "*.html")
    shutil.copytree(EXAMPLES, folder, ignore=left)
    return folder


def test_the_notebook_is_kept_without_output() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")  # of Jupyter's own packages
@pytest.mark.long
def test_every_cell_runs(jupyter: Path, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASCULE_SERVER", node.addresses["http"])
    monkeypatch.setenv("FLIGHTS_LIMIT", str(COUNT))
    notebook = nbformat.read(jupyter / NOTEBOOK.name, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=200,
        kernel_name="python3",
        resources={"metadata": {"path": str(jupyter)}},
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    told = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert f"{COUNT:,} flights, {miles():,} miles\n" in told
    assert "sound\n" in told
    assert "NOT" not in told
    assert f"{COUNT:,} flights on 6 days" in told
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert not [output for output in outputs if output.output_type == "error"]


def miles() -> Any:
    with zipfile.ZipFile(io.BytesIO((data_directory() / "flights.csv.zip").read_bytes())) as file:
        return sum_of_distance(file.read("flights.csv"), COUNT)
