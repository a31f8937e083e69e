"""The package is hmcvi and nothing else: no experiment, benchmark or test is in a wheel, none is imported."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy of the files that it is made of."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("hmcvi", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source))
    (path,) = out.glob("*.whl")
    return path


def pip(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "-q", *arguments], check=True, capture_output=True, cwd=Path.home()
    )


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_its_configurations(wheel: Path) -> None:
    assert wheel.stat().st_size < 2e6
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "hmcvi").rglob("*.py")}
    configs = {f"hmcvi/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    assert names == files | configs | {"hmcvi/py.typed", "hmcvi/data/digits.npz"}


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in an environment of its own, which finds the packages that it needs in this one."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    pip("install", "--no-deps", "--target", str(packages), str(wheel))
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


SMALL = ("train.pretrain_epochs=2", "train.epochs=2", "evaluate.num_draws=1", "evaluate.nll_samples=10")
LOAD = """
import hmcvi
run = hmcvi.load_run("runs/a")
assert "site-packages" in hmcvi.__file__, hmcvi.__file__
print(run.model.refine(run.images.test[:3], num_samples=2).shape, len(run.model.chain.steps) > 0)
"""


@pytest.mark.slow
def test_a_wheel_works_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    """Train, open, evidence, in-painting, comparison; nothing is written but in the folder."""
    before = {path for path in installed.parents[1].rglob("*") if "__pycache__" not in path.parts}

    def hmcvi(*arguments: str) -> str:
        command = [str(installed), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("PYTHONPATH", None)  # what it names would be imported in place of the wheel
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "train" in hmcvi("-m", "hmcvi", "--help")
    hmcvi("-m", "hmcvi", "train", "name=a", "--config", "hmcvi", *SMALL)  # in any order
    gaussian = ("--config", "gaussian-vae", "name=g")
    hmcvi("-m", "hmcvi", "train", *gaussian, *SMALL)
    hmcvi("-m", "hmcvi", "train", "--sweep", "chain.num_hmc=1,2", "--config", "hmcvi", "name=s", *SMALL)
    assert "True" in hmcvi("-c", LOAD)
    few = ("--images", "2", "--chains", "2")
    assert "log p(x)" in hmcvi("-m", "hmcvi", "evidence", "runs/a", *few, "--temperatures", "10")
    hmcvi("-m", "hmcvi", "inpaint", "runs/g", *few, "--samples", "8", "--warmup", "4")
    table = hmcvi("-m", "hmcvi", "compare", "runs/a", "runs/s-num_hmc=1", "--plot", "compare.png")
    assert "gain over a, paired" in table and (tmp_path / "compare.png").stat().st_size > 1000
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "compare.png"}
    assert before == {path for path in installed.parents[1].rglob("*") if "__pycache__" not in path.parts}


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
