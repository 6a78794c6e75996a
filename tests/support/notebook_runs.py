"""Runs the notebooks, from top to bottom, in a folder of their own.

python tests/support/notebook_runs.py    # keeps the outputs in notebooks/: look at the pictures before you commit them
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


def executed(file: Path, folder: Path, short: bool = False) -> Any:
    """The notebook with new outputs, or ``short`` with fewer sentences and steps. Its files go into the folder."""
    text = file.read_text(encoding="utf-8")
    if short:
        text = re.sub(r"max_steps \d+", "max_steps 2", text.replace("[::5]", "[::20]"))
        text = text.replace('\\"mini\\"', '\\"mini\\", \\"--mode\\", \\"fast\\"')
    notebook = nbformat.reads(text, 4)
    where = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=600, coalesce_streams=True, record_timing=False, resources=where).execute()


def keep(notebook: Any, file: Path) -> None:
    """Write it without progress, which goes to stderr, and without what differs between machines."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, file)


if __name__ == "__main__":
    for file in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            keep(executed(file, Path(folder)), file)
        print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB", file=sys.stderr)
