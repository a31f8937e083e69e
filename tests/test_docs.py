"""The code in the README and the guides runs, the links of all documents lead somewhere, commands parse."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch

from experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(ROOT / "README.md", id="README.md"),
        *(
            pytest.param(path, id=path.name, marks=pytest.mark.slow)
            for path in sorted((ROOT / "docs").glob("*.md"))
        ),
    ],
)
def test_examples_run(path: Path) -> None:
    """From top to bottom, each with what the ones above it defined."""
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, path.name, "exec"), names)


DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "benchmarks" / "RESULTS.md",
]


def anchors(path: Path) -> set[str]:
    """Of the headings of a document, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.M), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", sorted(DOCUMENTS), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", path.read_text()):
        there = path.parent / link if link else path
        assert there.exists(), link
        if anchor:
            assert anchor in anchors(there), f"{link}#{anchor}"


SOURCES = [
    [cell.strip() for cell in line.strip("| ").replace("||", "| |").split("|")]
    for line in (ROOT / "docs" / "sources.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| source ")
]


@pytest.mark.parametrize("row", SOURCES, ids=lambda row: row[0])
def test_figures_of_the_sources(row: list[str]) -> None:
    """A figure has a command that parses, a file that it wrote and a verdict, or it is not done yet."""
    _, command, result, verdict = row
    assert bool(command) <= bool(result), "a command without a result"
    assert result or "not done yet" in verdict
    assert verdict
    for words in map(shlex.split, re.findall(r"`(.*?)`", command)):
        assert words[:3] == ["python", "-m", "experiments"]
        parser = argparse.ArgumentParser()
        importlib.import_module(EXPERIMENTS[words[3]]).configure(parser)
        parser.parse_intermixed_args(words[4:])  # exits if it cannot
