"""Kernels built on the density of a model, and the variables they move."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from hmcvi.density import Density
from hmcvi.evidence.tempering import INVERSE_TEMPERATURE
from hmcvi.internal.layout import Layout
from hmcvi.kernels import Kernel
from hmcvi.pyro.density import EmbeddedPyroDensity, PyroDensity

ModelDensity = PyroDensity | EmbeddedPyroDensity
KernelFactory = Callable[..., Kernel]

# of required settings that warm-up tunes, or for which any value will do
DEFAULTS: dict[str, Any] = {"step_size": 0.1, "width": 2.0, "num_steps": 10}
JITTER = 0.5  # of a given number of steps: tuned step sizes may make just that many a period of the dynamics
OF_PYRO = {  # settings of Pyro's HMC and NUTS, and what does the same here
    "full_mass": "give warmup=Warmup(mass='dense'), which is the default where the draws suffice for it",
    "adapt_mass_matrix": "give warmup=Warmup(mass='fixed') for a mass that is not adapted",
    "adapt_step_size": "the step size is adapted by warm-up steps; with warmup_steps=0 it stays as given",
    "target_accept_prob": "give warmup=Warmup(target_acceptance=...)",
    "trajectory_length": "give num_steps, or leave it to warm-up",
    "max_tree_depth": "warm-up chooses the length of trajectories, num_steps fixes it",
    "max_plate_nesting": "it is found by running the model, leave it out",
    "jit_compile": "leave it out",
    "ignore_jit_warnings": "leave it out",
}


def build_kernel(factory: KernelFactory, density: Density, settings: Mapping[str, Any]) -> Kernel:
    """factory(density, **settings), with common values for required settings that are left out."""
    chosen, parameters = dict(settings), _parameters(factory)
    _refuse(factory, parameters)
    _refuse_unknown(factory, parameters, settings)
    if "discontinuous" in parameters:
        discrete = list(getattr(density.layout, "discrete", ()))
        chosen["discontinuous"] = [*discrete, *settings.get("discontinuous", ())]
        if not chosen["discontinuous"]:
            raise ValueError(
                "the model has no discrete sample sites: name those in which its density jumps by "
                "discontinuous=[...], or use HMC"
            )
    for name, parameter in parameters.items():
        if name in DEFAULTS and parameter.default is inspect.Parameter.empty:
            chosen.setdefault(name, DEFAULTS[name])
    if "num_steps" in settings and "jitter" in parameters and parameters["jitter"].default is None:
        chosen.setdefault("jitter", JITTER)
    kernel = factory(density, **chosen)
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel_factory must make a kernel of hmcvi.kernels, got {type(kernel).__name__}")
    return kernel


def _refuse(factory: KernelFactory, parameters: Mapping[str, inspect.Parameter]) -> None:
    """Refuse kernels that are made of something else than a density, and say how to give them."""
    name = getattr(factory, "__name__", str(factory))
    if "estimator" in parameters:
        raise ValueError(
            f"{name} runs on an estimate of the density: give a function of the model's density, such as "
            f"lambda density: {name}(integrate_out(density, [...]), ...)"
        )
    if {"kernel", "temperatures"} <= parameters.keys():
        raise ValueError(
            f"{name} runs another kernel: give a function of the model's density, such as "
            f"lambda density: {name}(HMC(density, 0.1), Continuous())"
        )


def _refuse_unknown(
    factory: KernelFactory, parameters: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]
) -> None:
    """Refuse settings that a kernel does not have, and say what does the same or is near in name."""
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = [name for name in list(parameters)[1:] if not name.startswith("_")]
    for name in settings.keys() - known:
        kernel = getattr(factory, "__name__", "kernel_factory")
        near = difflib.get_close_matches(name, known, 1)
        hint = OF_PYRO.get(name) or (f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}")
        raise TypeError(f"{kernel} has no setting {name!r}: {hint}")


def find_initial(
    kernel: Kernel, density: ModelDensity, num_chains: int, init_strategy: Callable[..., Any]
) -> Tensor:
    """Initial positions by a strategy of Pyro's, at β = 1 if the kernel tempers.  [num_chains, d]"""
    position = density.initial(num_chains, init_strategy)
    found = Layout(density.layout.shapes).unflatten(position)  # integers are embedded
    found.setdefault(INVERSE_TEMPERATURE, position.new_ones(num_chains))
    layout = moved_by(kernel, density)
    return layout.flatten({name: found[name] for name in layout.shapes})


def moved_by(kernel: Kernel, density: Density) -> Layout:
    """The variables that a kernel moves: all sites or some of them, possibly with a temperature."""
    layout = density.layout if kernel.density.layout is None else kernel.density.layout
    assert layout is not None and density.layout is not None
    if unknown := layout.shapes.keys() - density.layout.shapes.keys() - {INVERSE_TEMPERATURE}:
        raise ValueError(f"the kernel moves {sorted(unknown)}, the latents are {list(density.layout.shapes)}")
    return Layout(layout.shapes)


def _parameters(factory: KernelFactory) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(factory).parameters


def embeds(factory: KernelFactory) -> bool:
    """Whether the kernel moves embedded integers."""
    return "discontinuous" in _parameters(factory)
