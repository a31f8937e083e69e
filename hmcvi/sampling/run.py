"""Run a kernel: warm up, draw, and never lose what has been drawn."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmcvi.adaptation.tuned import settings_of
from hmcvi.adaptation.warmup import Warmup, warm_up
from hmcvi.density import Density
from hmcvi.internal.checks import choose, whole
from hmcvi.internal.processes import ALONE, Processes, connected
from hmcvi.internal.seeds import generator as seeded
from hmcvi.internal.settings import fingerprint
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.sampling.compiling import Compiling, as_defined
from hmcvi.sampling.diagnostics import SamplingWarning
from hmcvi.sampling.draws import Callback, Draws, RunStart, extend_by, read_draws, save_or_warn
from hmcvi.sampling.log import DrawsLog
from hmcvi.sampling.progress import KernelProgress
from hmcvi.sampling.record import RunEnd, same_values
from hmcvi.sampling.spread import as_one, check_same_call, spread
from hmcvi.sampling.starts import draw_starts, pathfinder_starts

DEFAULT_CHAINS, DEFAULT_WARMUP = 16, 500
MIXED = 0.1  # nats by which the value for a chain may depend on others, as by a solver that all share


def sample(
    kernel: Kernel,
    init: Tensor | Mapping[str, Tensor] | str | None = None,
    num_samples: int = 1000,
    num_warmup: int | None = None,
    thin: int = 1,
    seed: int = 0,
    progress: bool = True,
    callback: Callback | None = None,
    warmup: Warmup | None = None,
    checkpoint: str | Path | None = None,
    check: bool = True,
    num_chains: int | None = None,
) -> Draws:
    """Draws from the density of `kernel`, many chains at once.

    init: [chains, d], or {name: [chains, *shape]} for a density of named variables.  None: `num_chains` (16)
        of them, uniform in (−2, 2) where the density is finite.  "pathfinder": from there each climbs, and
        starts at a draw of the best normal distribution on its way (see `hmcvi.evidence.pathfinder`).
    num_warmup: transitions that tune the kernel (see `Warmup`) and are thrown away; nothing is tuned later.
        None: 500, or 0 where positions are given.
    thin: keep every thin-th draw.  Memory grows with the kept ones only.
    callback(index, state, info): called after each kept draw; returning True ends the run there.
    checkpoint: a file to which the draws are saved every 20 seconds and when the run ends, by an error or
        Ctrl-C too.  The same call, repeated, goes on from there and gives the draws it would have given.
        A file that cannot be written is a warning, tried again later; no draw is lost by it.  What is raised
        carries the draws until then as `.draws`.
    check: whether to look for what speaks against trusting the draws.  A run that has not converged then
        says so in a `SamplingWarning`.

    >>> from hmcvi import Density
    >>> from hmcvi.kernels import HMC
    >>> kernel = HMC(Density(lambda z: -0.5 * z.square().sum(-1), dim=3), step_size=0.1)
    >>> draws = sample(kernel, num_chains=16, num_samples=500, num_warmup=200, progress=False)
    >>> draws.position.shape
    torch.Size([16, 500, 3])
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel must be a kernel such as HMC(density), got {kernel!r}")
    if not isinstance(density := getattr(kernel, "density", None), Density | None):
        raise TypeError(
            f"a kernel moves a Density, {type(kernel).__name__}(hmcvi.Density(log_prob, dim=d)), got "
            f"{type(kernel).__name__}({density!r})"
        )
    num_samples = whole("num_samples", num_samples, 1)
    if num_warmup is None:
        num_warmup = DEFAULT_WARMUP if init is None or isinstance(init, str) else 0
    counts = whole("num_warmup", num_warmup, 0), whole("thin", thin, 1), whole("seed", seed, 0)
    start = RunStart(
        _initial(kernel, init, num_chains, seed),
        *counts,
        fingerprint(as_defined(kernel), warmup or Warmup(), unseen=lambda value: isinstance(value, Density)),
    )
    with connected() as group:
        check_same_call(start, num_samples, group)
        shown = progress and group.first
        draws, log = _stored(kernel, start, num_samples, checkpoint, group)
        if draws is None:
            draws = _begin(kernel, start, warmup or Warmup(), shown, group)
            if log is not None:
                save_or_warn(log, draws, draws.end, "sampling goes on, and tries again")
        more = num_samples - len(draws)
        draws = extend_by(group, draws, more, shown, callback, log, checkpoint is not None)
    if check and group.first and (problems := [*_events(draws), *draws.problems()]):
        warnings.warn("; ".join(problems), SamplingWarning, stacklevel=2)
    return draws


def _stored(
    kernel: Kernel, start: RunStart, num_samples: int, checkpoint: str | Path | None, group: Processes
) -> tuple[Draws | None, DrawsLog | None]:
    """What a checkpoint holds of a run, None if there is none; in the first process, the log that grows."""
    if checkpoint is None:
        return None, None
    path, log, content = Path(checkpoint), None, None
    if group.first:
        log = DrawsLog(path)
        if path.exists():
            content, log = read_draws(path)
        elif not path.absolute().parent.is_dir():
            raise ValueError(f"checkpoint {checkpoint} is in a folder that does not exist")
    if (content := group.broadcast(content)) is None:
        return None, log
    draws = Draws.from_content(content, checkpoint, kernel)
    if not draws.start.same_as(start):
        raise ValueError(
            f"{checkpoint} belongs to a run with another init, kernel, warm-up, thin or seed: repeat "
            "that call to go on, or delete the file to begin anew"
        )
    if len(draws) > num_samples:
        raise ValueError(f"{checkpoint} holds {len(draws)} draws already, more than {num_samples}")
    return draws, log


def _begin(
    kernel: Kernel, start: RunStart, warmup: Warmup, progress: bool, group: Processes = ALONE
) -> Draws:
    """Warm up; no draws yet."""
    kernel = spread(kernel, start.position, group)
    generator = seeded(start.seed, device=start.position.device)
    state = kernel.init(start.position)
    if not (finite := state.log_prob.isfinite()).all():
        raise ValueError(
            f"log_prob is not finite at the initial positions of {_listed(~finite)}: start them where the "
            "density is positive"
        )
    _check_density(kernel, state)
    restarted, compiling = 0, Compiling(kernel, start.position)
    with KernelProgress("warm-up", start.num_warmup, progress) as display:

        def observe(kernel: Kernel, info: Info) -> None:
            nonlocal restarted
            compiling.count(info)
            restarted += int(info["num_restarted"].sum()) if "num_restarted" in info else 0
            display.advance(kernel, info)

        kernel, state = warm_up(kernel, state, start.num_warmup, generator, warmup, observe, compiling.apply)
    kernel = as_one(compiling.as_given(kernel))
    position = start.position.new_empty(len(start.position), 0, start.position.shape[-1])
    events = {"restarted": restarted, "gradients": compiling.gradients}
    counted = {name: count for name, count in events.items() if count}
    end = RunEnd(state, generator.get_state(), {**settings_of(kernel), **counted})
    return Draws(position, {}, kernel.density.layout, start, end, kernel)


def _check_density(kernel: Kernel, state: Any) -> None:
    """Warn of a log_prob that has another value when it is called again; refuse one that mixes chains."""
    if hasattr(state, "auxiliary"):
        return
    if not same_values(state.log_prob, kernel.init(state.position).log_prob):
        warnings.warn(
            "log_prob gave other values when it was called again at the same positions, so that no kernel "
            "leaves its density invariant: switch off what is random in it (a network's eval()) or changes "
            "outside of it, or use PseudoMarginalMH for densities that are estimated",
            SamplingWarning,
            stacklevel=4,
        )
    elif len(state.position) > 1 and _mixes(kernel.density, state):
        raise ValueError(
            "log_prob of a chain changes with the positions of other chains: each row of its argument is a "
            "chain of its own, so that sums and means must be of the last dimensions, sum(-1), never of all"
        )


def _mixes(density: Density, state: Any) -> bool:
    """Whether log_prob of the first chain changes when others are where it is, or elsewhere if they were."""
    first, others = state.position[:1], state.position[1:]
    companion = first if (others != first).any() else 1.1 * first + 0.1
    alone = density.finite_log_prob(torch.cat([first, companion.expand_as(others)]))[0]

    def same(among: Tensor) -> bool:
        rounding = among.abs() * torch.finfo(among.dtype).eps ** 0.4
        return not (alone - among).abs() > MIXED + rounding

    # the state's own value may be of another density, as on a manifold
    return not (same(state.log_prob[0]) or same(density.finite_log_prob(state.position)[0]))


def _events(draws: Draws) -> list[str]:
    """What happened to single chains that the user should know."""
    found = []
    if count := draws.end.settings.get("restarted", 0):
        found.append(
            f"{count} {'chains' if count > 1 else 'chain'} lagged far behind during warm-up and went on from "
            "where others were: if the density may have several modes, start chains in each (init=...)"
        )
    return found


def _listed(chains: Tensor) -> str:
    """Of a mask, how many chains and which.  [chains]"""
    indices = chains.nonzero()[:, 0].tolist()
    shown = ", ".join(map(str, indices[:10])) + (", …" if len(indices) > 10 else "")
    return f"{len(indices)} of {len(chains)} chains ({shown})"


def _initial(
    kernel: Kernel, init: Tensor | Mapping[str, Tensor] | str | None, num_chains: int | None, seed: int
) -> Tensor:
    """Initial positions, given or drawn  [chains, d]"""
    if init is None or isinstance(init, str):
        draw = draw_starts if init is None else choose("init", init, {"pathfinder": pathfinder_starts})
        count = DEFAULT_CHAINS if num_chains is None else whole("num_chains", num_chains, 1)
        return draw(kernel.density, count, seed)
    position = _flat(kernel, init)
    if num_chains is not None and num_chains != len(position):
        raise ValueError(
            f"init has {len(position)} chains, num_chains is {num_chains}: leave one of them out"
        )
    return position


def _flat(kernel: Kernel, init: Tensor | Mapping[str, Tensor]) -> Tensor:
    """Initial positions  [chains, d]"""
    layout = kernel.density.layout
    if isinstance(init, Mapping):
        if layout is None:
            raise ValueError(
                "init has named variables, the density has not: build Density(log_prob, shapes={name: shape})"
            )
        init = layout.flatten(init)
    if not isinstance(init, Tensor):
        raise TypeError(f"init must be a tensor or a dict of tensors, got {type(init).__name__}")
    if init.ndim != 2 or 0 in init.shape:
        raise ValueError(f"init must be [chains, d], one row per chain, got {list(init.shape)}")
    if layout is not None and init.shape[1] != layout.dim:
        raise ValueError(
            f"the variables {layout.shapes} fill {layout.dim} dimensions, init has {init.shape[1]}"
        )
    return init.detach().clone()
