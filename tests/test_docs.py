"""The code in the README and the guides runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{index}")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for index, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_example(block: str) -> None:
    torch.manual_seed(0)
    exec(compile(block, "example", "exec"), {})


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *(ROOT / "docs").glob("*.md")], ids=lambda path: path.name
)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / link).exists(), link
