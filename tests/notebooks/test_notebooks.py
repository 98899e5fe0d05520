"""The notebooks run from their first cell to the last, and show what they showed when kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install 'spark-eoc[notebooks]'")
nbclient = pytest.importorskip("nbclient", reason="pip install 'spark-eoc[notebooks]'")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def shown(cell) -> str:
    """What a reader sees below a cell; warnings on stderr are not part of it."""
    return "".join(
        output.text if output.output_type == "stream" else str(output.data.get("text/plain"))
        for output in cell.outputs
        if output.output_type != "stream" or output.name != "stderr"
    )


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_and_hold_no_error(path):
    """Somebody who only reads it on the web sees what it does."""
    cells = code_cells(nbformat.read(path, as_version=4))
    assert any(shown(cell) for cell in cells)
    assert [o for cell in cells for o in cell.outputs if o.output_type == "error"] == []


@pytest.mark.timeout(280)
@pytest.mark.usefixtures("mariadb_server", "redis_server")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_shows_the_same(path, tmp_path, monkeypatch):
    """No cell fails; cells that aren't tagged `varies` show exactly what is kept."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    kept = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    # Any kernel of that name may be another Python's; this one is ours.
    monkeypatch.setenv("JUPYTER_PATH", str(kernel(tmp_path)))
    client = nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="ours", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    for before, after in zip(code_cells(kept), code_cells(notebook), strict=True):
        if "varies" not in before.metadata.get("tags", []):
            assert shown(after) == shown(before), after.source


def kernel(folder: Path) -> Path:
    """A Jupyter path with one kernel, run by this Python."""
    spec = folder / "kernels" / "ours"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    content = {"argv": argv, "display_name": "ours", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(content))
    return folder
