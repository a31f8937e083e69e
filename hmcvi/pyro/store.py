"""Parameters of guides in Pyro's param store."""

from __future__ import annotations

import pyro
from pyro.nn.module import PyroModule
from pyro.params.param_store import param_with_module_name
from torch import Tensor, nn
from torch.distributions import Transform


def synchronise(guide: PyroModule) -> None:
    """Give a guide the parameters that the param store has under its names.

    Pyro does so for attributes made by PyroParam, and for others only when they are set: a guide would run
    with its own parameters while SVI trains those of the store, or while others were loaded into it.
    """
    if pyro.settings.get("module_local_params"):
        return
    for name in guide._parameters:
        if not name.endswith("_unconstrained"):
            _take(guide, name, guide._pyro_get_fullname(name))
    for name, child in guide._modules.items():
        if isinstance(child, PyroModule):
            synchronise(child)
        elif child is not None:
            _synchronise_module(child, guide._pyro_get_fullname(name))


def is_stored(guide: PyroModule, child: str) -> bool:
    """Whether the param store has parameters of a child of the guide."""
    return not pyro.settings.get("module_local_params") and bool(_stored(guide._pyro_get_fullname(child)))


def forget(guide: PyroModule, child: str) -> None:
    """Remove the parameters of a child from the param store."""
    if not pyro.settings.get("module_local_params"):
        for name in _stored(guide._pyro_get_fullname(child)):
            del pyro.get_param_store()[name]


def release(guide: PyroModule) -> None:
    """Drop what cannot be copied: references to the param store, and values that transforms remember."""
    for parameter in guide.parameters():
        parameter.__dict__.pop("unconstrained", None)
    for part in guide.modules():
        if isinstance(part, Transform):
            part._cached_x_y = None, None
            if "_cached_log_scale" in vars(part):
                vars(part)["_cached_log_scale"] = None


def _stored(full_name: str) -> list[str]:
    prefixes = (f"{full_name}.", param_with_module_name(full_name, ""))
    return [name for name in pyro.get_param_store() if name.startswith(prefixes)]


def _synchronise_module(module: nn.Module, full_name: str) -> None:
    own = {param_with_module_name(full_name, path): path for path, _ in module.named_parameters()}
    stored = _stored(full_name)
    if not stored:
        return
    if missing := set(stored) ^ own.keys():
        raise _of_another(sorted(missing)[0])
    for name, path in own.items():
        parent, _, last = path.rpartition(".")
        _take(module.get_submodule(parent), last, name)


def _take(owner: nn.Module, name: str, full_name: str) -> None:
    """Replace a parameter by that of the store, if there is one."""
    store, own = pyro.get_param_store(), owner._parameters[name]
    if full_name not in store:
        return
    stored: Tensor = store[full_name].unconstrained()  # type: ignore[attr-defined]
    if own is None or own.shape != stored.shape:
        raise _of_another(full_name)
    owner._parameters[name] = stored  # type: ignore[assignment]


def _of_another(full_name: str) -> ValueError:
    return ValueError(
        f"the param store has parameters of another guide: {full_name!r} does not fit. Call "
        "pyro.clear_param_store() before this guide is made, or give it the settings of the other."
    )
