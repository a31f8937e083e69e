"""Kernels in practice: chains do not see each other, draw from the generator they are given, fail alone."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hmcvi.internal.random
from hmcvi import Density, Phase
from hmcvi.kernels.mcmc.retarget import retarget
from tests.contracts.kernels import KERNELS, KernelExample, home, make, run, start_at
from tests.support.problems import F64

DRAWING = ("hmcvi.kernels", "hmcvi.dynamics", "hmcvi.internal.random")  # modules that draw random numbers
over_kernels = pytest.mark.parametrize("example", KERNELS, ids=str)


class Tape:
    """Records the random numbers of a step in company and plays those of one chain to it alone."""

    names = (
        *("standard_normal", "uniform", "integer", "draw_from", "laplace_variates", "permutation"),
        *("standard_normal_", "uniform_", "integer_"),
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Tensor | int] = []
        self.chain: int | None = None
        for name in self.names:
            original = getattr(hmcvi.internal.random, name)
            for module in [m for key, m in sys.modules.items() if key.startswith(DRAWING)]:
                if getattr(module, name, None) is original:
                    monkeypatch.setattr(module, name, self.taped(original))

    def taped(self, draw: Callable) -> Callable:
        def play(*args: object) -> Tensor | int:
            if self.chain is None:
                self.calls.append(draw(*args))
                return self.calls[-1]
            value = next(self.playing)
            if isinstance(value, Tensor) and value.ndim:
                value = value[self.chain]
            return args[0].copy_(value) if draw.__name__.endswith("_") else value  # type: ignore[attr-defined]

        return play

    def play(self, chain: int) -> None:
        self.chain, self.playing = chain, iter(self.calls)


@over_kernels
def test_the_same_alone_or_in_company(example: KernelExample, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the random numbers it had in company, and its own density, a chain alone goes the same way."""
    torch.manual_seed(0)
    target, count = home(example), 12
    slopes = torch.linspace(0.0, 1.0, count, dtype=F64)

    def log_prob(z: Tensor, slope: Tensor) -> Tensor:
        return target.density.log_prob(z) - slope * z.sum(-1)

    kernel = make(example, Density(log_prob, slopes))
    start = start_at(kernel, target.draw(count))
    tape = Tape(monkeypatch)
    together, report = kernel.step(start, torch.Generator().manual_seed(0))
    for chain in range(count):
        tape.play(chain)
        alone, info = make(example, Density(log_prob, slopes[chain])).step(one_of(start, chain))
        assert_same_state(alone, one_of(together, chain))
        assert info.keys() == report.keys()
        for name, value in info.items():
            torch.testing.assert_close(value, report[name][chain], rtol=1e-9, atol=1e-9)


def one_of(state: Phase, chain: int) -> Phase:
    return Phase(*(None if part is None else part[chain] for part in state))


def assert_same_state(state: Phase, other: Phase) -> None:
    for part, twin in zip(state, other, strict=True):
        assert (part is None) == (twin is None)
        if part is not None:
            torch.testing.assert_close(part, twin, rtol=1e-9, atol=1e-9)


@over_kernels
@pytest.mark.parametrize("batch", [(), (5,), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes_are_kept(
    example: KernelExample, batch: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    target = home(example)
    kernel = make(example, target.density, dtype=dtype)
    state, info = kernel.step(start_at(kernel, target.draw_base(*batch).to(dtype)))
    for vector in (state.position, state.momentum, state.grad):
        assert vector is None or (vector.shape, vector.dtype) == ((*batch, 2), dtype)
    assert (state.log_prob.shape, state.log_prob.dtype) == (batch, dtype)
    for name, report in info.items():
        assert report.shape == batch, name
        if name.startswith(("accepted", "diverged")):
            assert report.dtype == torch.bool, name
        elif name.startswith("num_"):
            assert report.dtype == torch.int64, name
        else:
            assert report.dtype == dtype, name
        if name.startswith("acceptance_rate"):
            assert ((report >= 0) & (report <= 1)).all()


@over_kernels
def test_the_state_knows_its_own_density(example: KernelExample) -> None:
    """What is carried on as log γ and ∇log γ is that of the new position, accepted or not."""
    target = home(example)
    kernel = make(example, target.density)
    state, _ = run(kernel, start_at(kernel, target.draw(200)), 2)
    torch.testing.assert_close(state.log_prob, target.density.log_prob(state.position))
    if state.grad is not None:
        torch.testing.assert_close(state.grad, kernel.density.value_and_grad(state.position)[1])


@over_kernels
def test_a_bare_position_is_a_state(example: KernelExample) -> None:
    """A state that knows neither log γ nor its gradient leads to the same place."""
    target = home(example)
    kernel = make(example, target.density)
    full = start_at(kernel, target.draw(20))
    bare = Phase(full.position, full.momentum)
    (known, info), (unknown, _) = (kernel.step(s, torch.Generator().manual_seed(3)) for s in (full, bare))
    assert_same_state(known, unknown)
    assert any(name in info for name in ("num_evaluations", "num_gradients"))


@over_kernels
def test_every_evaluation_is_reported(example: KernelExample) -> None:
    """One chain alone: as many calls of log γ, with and without gradient, as the step says it made."""
    if example.traced:
        pytest.skip("log_prob is called only once")
    target, calls = home(example), []

    def log_prob(z: Tensor) -> Tensor:
        calls.append(z.requires_grad)
        return target.density.log_prob(z)

    kernel = make(example, Density(log_prob))
    state, generator = start_at(kernel, target.draw(1)[0]), torch.Generator().manual_seed(0)
    for _ in range(20):
        calls.clear()
        state, info = kernel.step(state, generator)
        if example.name == "ConditionalDraw":  # what a draw costs is its own affair
            assert info["num_evaluations"] == 1
            continue
        assert info.get("num_gradients", 0) == sum(calls)
        assert info.get("num_evaluations", 0) == len(calls) - sum(calls)


@over_kernels
def test_randomness_comes_from_the_generator(example: KernelExample) -> None:
    target = home(example)
    kernel = make(example, target.density)
    start = start_at(kernel, target.draw_base(10))
    before = torch.get_rng_state()
    first, again, other = (run(kernel, start, 3, seed)[0].position for seed in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again) and not torch.equal(first, other)


@over_kernels
def test_without_a_generator_the_global_seed_counts(example: KernelExample) -> None:
    target = home(example)
    kernel = make(example, target.density)
    start = start_at(kernel, target.draw_base(10))
    ends = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        ends.append(kernel.step(start)[0].position)
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


@over_kernels
def test_a_state_can_be_resumed(example: KernelExample) -> None:
    """One generator carried through two runs gives the run in one piece; the state given is not changed."""
    target = home(example)
    kernel = make(example, target.density)
    start = start_at(kernel, target.draw_base(10))
    copy = Phase(*(None if part is None else part.clone() for part in start))
    whole, _ = run(kernel, start, 6)
    assert_same_state(start, copy)
    generator, state = torch.Generator().manual_seed(1000), copy
    for _ in range(3):
        state, _ = kernel.step(state, generator)
    state = Phase(*(None if part is None else part.clone() for part in state))
    resumed = torch.Generator()
    resumed.set_state(generator.get_state())
    for _ in range(3):
        state, _ = kernel.step(state, resumed)
    assert torch.equal(state.position, whole.position)


@over_kernels
@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
def test_a_chain_without_density_stays(example: KernelExample, value: float) -> None:
    """Where log γ is no number the chain does not move, and the others do not notice."""
    target = home(example)

    def log_prob(z: Tensor, broken: Tensor) -> Tensor:
        return target.density.log_prob(z).where(~broken, value)

    broken = torch.tensor([False, True, False])
    start = target.draw(3)
    kernel, healthy = (make(example, d) for d in (Density(log_prob, broken), target.density))
    end, info = kernel.step(kernel.init(start), torch.Generator().manual_seed(0))
    well, _ = healthy.step(healthy.init(start), torch.Generator().manual_seed(0))
    assert torch.equal(end.position[1], start[1])
    torch.testing.assert_close(end.position[[0, 2]], well.position[[0, 2]])
    for name in info:
        if name.startswith(("accepted", "acceptance_rate")):
            assert info[name][1] == 0, name
    if "diverged" in info:
        assert info["diverged"].tolist() == [False, True, False]


@over_kernels
def test_a_chain_outside_the_support_stays(example: KernelExample) -> None:
    """Annealing relies on it: a chain that left γ = 0 would shed the weight of having been there."""
    target, start = home(example), home(example).draw(200)
    centre = start[0]

    def log_prob(z: Tensor) -> Tensor:
        return target.density.log_prob(z).where((z - centre).norm(dim=-1) > 0.1, -torch.inf)

    kernel = make(example, Density(log_prob))
    outside = (start - centre).norm(dim=-1) <= 0.1
    end, _ = run(kernel, kernel.init(start), 5)
    assert torch.equal(end.position[outside], start[outside])
    assert torch.equal(end.log_prob == -torch.inf, outside)
    assert (end.position != start).any(-1).sum() > 50


@over_kernels
def test_other_settings_leave_the_kernel_as_it_was(example: KernelExample) -> None:
    """A copy for another density runs on that one, and the original on its own."""
    target = home(example)
    kernel = make(example, target.density)
    before = kernel.density
    narrow = Density(lambda z: target.density.log_prob(z) - 50 * (z - 0.5).square().sum(-1))
    if example.name != "ConditionalDraw":  # its draw belongs to one density
        copy = retarget(kernel, narrow)
        state, _ = copy.step(copy.init(target.draw(10)))
        torch.testing.assert_close(state.log_prob, narrow.log_prob(state.position))
    assert kernel.density is before
    assert getattr(before, "target", before) is target.density
    with pytest.raises(AttributeError, match="no setting 'tempo'"):
        kernel.replace(tempo=3)
