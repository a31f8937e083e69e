"""The package is hmcvi and nothing else: no experiment, benchmark or test is in a wheel, none is imported."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from setuptools import find_packages

import hmcvi.models
from hmcvi.commands import main
from hmcvi.internal.moved import moved

ROOT = Path(__file__).parents[1]
OURS = "experiments|benchmarks|tests"
REDIRECTS = ROOT / "hmcvi" / "models" / "__init__.py"  # names of the first release, by hmcvi.internal.moved


def settings() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_a_wheel_holds_the_package_alone() -> None:
    assert settings()["options"]["packages"] == "find:"
    patterns = re.split(r"[,\s]+", settings()["options.packages.find"]["include"].strip())
    found = find_packages(str(ROOT), include=patterns)
    assert "hmcvi.commands" in found
    assert {name.split(".")[0] for name in found} == {"hmcvi"}
    assert "hmcvi.experiments" not in found
    folders = {path.parent for path in (ROOT / "hmcvi").rglob("*.py")}
    assert {".".join(folder.relative_to(ROOT).parts) for folder in folders} == set(found)


def test_the_command_is_found() -> None:
    (script,) = settings()["options.entry_points"]["console_scripts"].strip().splitlines()
    name, module, function = re.fullmatch(r"(\w+) = ([\w.]+):(\w+)", script).groups()
    assert (name, module, function) == ("hmcvi", "hmcvi.commands", "main")
    assert callable(main)


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that a file imports, anywhere, and strings that could name one for importlib."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def foreign(source: str) -> list[str]:
    return [name for name in imported(ast.parse(source)) if re.match(rf"({OURS})(\.[\w.:]+)?$", name)]


def test_the_package_imports_none_of_its_users() -> None:
    found = {path: set(foreign(path.read_text())) for path in (ROOT / "hmcvi").rglob("*.py")}
    assert found.pop(REDIRECTS) == {"experiments.models"}
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize(
    "source",
    [
        "import experiments",
        "from benchmarks.measuring import clock",
        "def run():\n    from experiments.report import write",
        "importlib.import_module('experiments.table1')",
        "COMMANDS = {'pose': 'experiments.pose'}",
        "homes = 'experiments.models:human_pose'",
    ],
)
def test_every_way_to_import_is_noticed(source: str) -> None:
    assert foreign(source)


def test_other_words_are_not() -> None:
    assert not foreign("'''experiments with many modes'''\nname = 'experiment'\nimport hmcvi.models")


def test_models_of_the_experiments_keep_their_addresses() -> None:
    for name in hmcvi.models.MOVED:
        assert getattr(hmcvi.models, name).__module__.startswith("experiments.models.")


def test_what_is_not_installed_says_where_it_is() -> None:
    with pytest.raises(ImportError, match=r"it is nowhere\.models\.new in a checkout of the repository"):
        moved("hmcvi.models", "old", {"old": "nowhere.models:new"})
    with pytest.raises(AttributeError, match=r"'hmcvi\.models' has no attribute 'other'"):
        moved("hmcvi.models", "other", {"old": "nowhere.models"})
