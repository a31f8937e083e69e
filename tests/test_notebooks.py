"""The notebooks of the site run from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import pytest
import torch

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    names: dict[str, object] = {}
    threads = torch.get_num_threads()
    with matplotlib.rc_context({"backend": "agg", "figure.max_open_warning": 0}):
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), path.name, "exec"), names)
        matplotlib.pyplot.close("all")
    torch.set_num_threads(threads)


def test_there_are_three_and_all_have_been_run() -> None:
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert all(cell["execution_count"] for cell in cells), path.name
