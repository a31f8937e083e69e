"""Who may import whom, and what an import may not do."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

import hmcvi
import hmcvi.evidence
import hmcvi.flows
import hmcvi.kernels
import hmcvi.models

ROOT = Path(hmcvi.__file__).parent

# Who may import whom, inside functions too.  A room may always import itself.
CORE = {"internal", "density", "chain", "objectives", "networks"}
ALLOWED: dict[str, set[str]] = {
    "internal": set(),
    "density": {"internal"},
    "chain": {"internal", "density"},
    "objectives": {"internal", "density", "chain"},
    "networks": {"internal", "density", "chain"},
    "models": CORE,
    "dynamics": CORE,
    "flows": CORE | {"dynamics"},
    "kernels": CORE | {"dynamics", "flows", "models.generator"},
    "adaptation": CORE | {"dynamics", "flows", "kernels"},
    "sampling": CORE | {"dynamics", "flows", "kernels", "adaptation"},
    "evidence": CORE | {"dynamics", "flows", "kernels", "adaptation", "sampling", "models"},
    "pyro": CORE | {"dynamics", "flows", "kernels", "adaptation", "sampling", "evidence"},
    "data": {"internal"},
}
INNER = set(ALLOWED)
ALLOWED |= {
    "training": INNER,
    "commands": INNER | {"training", ""},  # which knows the version
    "cli": {"commands"},
    "__main__": {"commands"},
    "": INNER - {"data"} | {"training"},  # hmcvi/__init__.py
}


def source_files() -> dict[str, Path]:
    """Module name -> file, of the whole package."""
    files = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


FILES = source_files()


def imports(module: str, top_level_only: bool = False) -> set[str]:
    """Absolute names of the modules that the file imports; inside functions too, unless told otherwise."""
    tree = ast.parse(FILES[module].read_text())
    is_package = FILES[module].name == "__init__.py"
    found = set()
    attempts = [part for node in tree.body if isinstance(node, ast.Try) for part in node.body]
    for node in [*tree.body, *attempts] if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                package = module.split(".")
                kept = len(package) - node.level + is_package
                source = ".".join([*package[:kept], *([source] if source else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                found.add(submodule if submodule in FILES else source)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            found |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return found


def room_of(module: str) -> str:
    """hmcvi.kernels.mcmc.hmc -> kernels; hmcvi itself -> the empty name."""
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("module", FILES)
def test_arrows_point_inwards(module: str) -> None:
    here = room_of(module)
    assert here in ALLOWED, f"say in tests/test_architecture.py what hmcvi.{here} may import"
    ours = {name for name in imports(module) if name.split(".")[0] == "hmcvi"}
    allowed = {here, *ALLOWED[here]}
    forbidden = {
        name for name in ours if room_of(name) not in allowed and name.removeprefix("hmcvi.") not in allowed
    }
    assert not forbidden, f"{module} must not import {sorted(forbidden)}"


def test_the_rooms_are_those_of_the_plan() -> None:
    assert {room_of(module) for module in FILES} == set(ALLOWED)


@pytest.mark.parametrize("module", FILES)
def test_nothing_imports_experiments_or_benchmarks(module: str) -> None:
    outside = {
        name for name in imports(module) if name.split(".")[0] in ("experiments", "benchmarks", "tests")
    }
    assert not outside, f"{module} imports {sorted(outside)}"


LAZY = {"fcntl", "pyro", "arviz", "matplotlib", "tensorboard", "torch", "scipy", "tqdm", "PIL"}


@pytest.mark.parametrize("module", FILES)
def test_lazy_imports_are_of_heavy_packages_only(module: str) -> None:
    """An import inside a function may save time, never hide a cycle; `hmcvi.pyro` and its parts are heavy.

    The front door imports everything late.
    """
    if module == "hmcvi":
        return
    later = imports(module) - imports(module, top_level_only=True)
    hidden = {name for name in later if name.split(".")[0] not in LAZY and name not in HEAVY}
    assert not hidden, f"{module} imports {sorted(hidden)} inside a function"


HEAVY = {
    "hmcvi.pyro",
    "hmcvi.flows.augmented_softmax",  # it imports Pyro
    "hmcvi.commands.endings",  # it imports torch
}


def test_the_weight_has_one_home() -> None:
    """log γ(z_T) − log q0(z0) + Σ log_ratio is written in `weigh` and nowhere else."""
    ratio, target = "log_ratio", r"(log_density\(|log_target [-+])"
    formula = re.compile(rf"\b{ratio}\b.*\b{target}|\b{target}.*\b{ratio}\b")
    code = {module: re.sub(r'(?s:""".*?""")|#.*', "", path.read_text()) for module, path in FILES.items()}
    homes = {module: formula.findall(text) for module, text in code.items() if formula.search(text)}
    assert homes.keys() == {"hmcvi.chain"} and len(homes["hmcvi.chain"]) == 1, homes


@pytest.mark.parametrize("module", FILES)
def test_only_the_pyro_package_knows_pyro_inference(module: str) -> None:
    reaches = {name for name in imports(module) if name == "pyro" or name.startswith("pyro.infer")}
    assert not reaches or room_of(module) == "pyro", f"{module} imports {sorted(reaches)}"


def test_no_import_goes_in_circles() -> None:
    graph = {
        module: {name for name in imports(module, top_level_only=True) if name in FILES} for module in FILES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circular imports: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("module", ["hmcvi", "hmcvi.commands", "hmcvi.sampling", "train"])
def test_nothing_heavy_is_imported_before_it_is_needed(module: str) -> None:
    heavy = ("pyro", "arviz", "matplotlib", "tensorboard", "scipy", "torch._dynamo", "torch._inductor")
    if module in ("hmcvi", "hmcvi.commands"):
        heavy = (*heavy, "torch", "numpy")
    code = f"import sys, {module}; print(*(name for name in {heavy} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True)
    assert run.stdout.split() == [], run.stderr


def test_a_run_of_the_sampler_imports_nothing_heavy() -> None:
    """Whose import would take longer than the run."""
    code = """
import sys, torch, hmcvi
density = hmcvi.Density(lambda z: -0.5 * z.square().sum(-1), dim=3)
hmcvi.sample(hmcvi.kernels.HMC(density), num_samples=500, num_warmup=500, progress=False, check=False)
print(*({"pyro", "sympy", "scipy", "arviz", "torch._dynamo", "torch._inductor"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.split() == [], run.stdout + run.stderr


@pytest.mark.parametrize(
    "package",
    [hmcvi.evidence, hmcvi.flows, hmcvi.kernels, hmcvi.models],
    ids=["evidence", "flows", "kernels", "models"],
)
def test_public_names_are_what_they_name(package: ModuleType) -> None:
    """A name that a package exports is not taken by one of its files."""
    assert sorted(package.__all__) == sorted(set(package.__all__))
    for name in package.__all__:
        assert not isinstance(getattr(package, name), ModuleType), f"{package.__name__}.{name} is a file"


def test_the_front_door_is_open() -> None:
    for name in hmcvi.__all__:
        assert hasattr(hmcvi, name)
    assert importlib.import_module("hmcvi").__version__


EFFECTS = """
import json, random, sys
import numpy as np
import torch
import pyro.distributions
from torch.distributions import biject_to, transform_to

def snapshot():
    return {
        "dtype": str(torch.get_default_dtype()),
        "torch rng": torch.get_rng_state().tolist(),
        "numpy rng": str(np.random.get_state()),
        "python rng": str(random.getstate()),
        "grad": torch.is_grad_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "validation": torch.distributions.Distribution._validate_args,
        "biject_to": sorted(f"{k} {v}" for k, v in biject_to._registry.items()),
        "transform_to": sorted(f"{k} {v}" for k, v in transform_to._registry.items()),
        "torch": sorted(dir(torch)),
        "Tensor": sorted(dir(torch.Tensor)),
    }

before = snapshot()
import hmcvi
after = snapshot()
json.dump([key for key in before if before[key] != after[key]], sys.stdout)
"""


def test_importing_has_no_effects() -> None:
    """Beyond those of Pyro's distributions, which it builds on."""
    result = subprocess.run(
        [sys.executable, "-c", EFFECTS], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert json.loads(result.stdout) == []


FIRST = """
import importlib, sys
import hmcvi  # whatever is imported, Python imports this first
known = set(sys.modules)
import torch, pyro.distributions
for name in sys.argv[1:]:
    for loaded in [m for m in sys.modules if m.split(".")[0] == "hmcvi" and m not in known]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""


@pytest.mark.slow
def test_every_module_can_be_imported_first() -> None:
    names = [name for name in FILES if not name.endswith("__main__")]
    result = subprocess.run(
        [sys.executable, "-c", FIRST, *names], capture_output=True, text=True, check=False, cwd=ROOT.parent
    )
    assert result.returncode == 0, result.stderr[-2000:]
