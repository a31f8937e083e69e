"""No public class escapes the laws."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import hmcvi.flows
import hmcvi.kernels
from hmcvi import Chain, Step
from hmcvi.kernels import Kernel, Mass, Metric, MomentumModel
from tests.contracts.estimated import ESTIMATED, Noisy
from tests.contracts.kernels import KERNELS
from tests.contracts.members import MASSES, MOMENTUM_MODELS, STEPS, metrics
from tests.support.problems import F64, Mixture
from tests.support.targets import PLANE


def public_subclasses(package: ModuleType, base: type) -> set[type]:
    modules = [
        importlib.import_module(info.name)
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    ]
    return {
        member
        for module in [package, *modules]
        for name, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, base)
        and member is not base
        and not inspect.isabstract(member)
        and not name.startswith("_")
    }


def members(base: type) -> set[type]:
    if base is Step:
        return {type(example.make()) for example in STEPS}
    if base is Kernel:
        made: list[Kernel] = [example.make(Mixture().density, 2, F64) for example in KERNELS]
        made += [make(Noisy(PLANE["banana"], 1.0).estimator) for make in ESTIMATED.values()]
        return {kind for kernel in made for kind in type(kernel).__mro__}
    if base is Mass:
        return {type(make()) for make in MASSES.values()}
    if base is MomentumModel:
        return {type(make()) for make in MOMENTUM_MODELS.values()}
    return {type(example.metric) for example in metrics()}


@pytest.mark.parametrize("base", [Step, Kernel, Mass, Metric, MomentumModel])
def test_every_public_class_has_joined(base: type) -> None:
    found = public_subclasses(hmcvi.flows, base) | public_subclasses(hmcvi.kernels, base)
    assert found, f"no {base.__name__} was found: the search is broken"
    missing = found - members(base)
    assert not missing, f"add to tests/contracts/: {sorted(c.__name__ for c in missing)}"


def test_the_composition_has_joined() -> None:
    assert Chain in members(Step)
