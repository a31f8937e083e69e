"""The code in the README and the guides runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
over_guides = pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)


@over_guides
def test_examples_run(path: Path) -> None:
    """From top to bottom, each with what the ones above it defined."""
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, path.name, "exec"), names)


@over_guides
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / link).exists(), link
