"""A compiled kernel is the eager one: draws, statistics, failures, and no compilation for new settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import hmcvi
from hmcvi import Density, Phase
from hmcvi.evidence import ais, bidirectional
from hmcvi.internal.compile import Compiled
from hmcvi.internal.tracing import Traced
from hmcvi.kernels import HMC, DiagonalMetric, Gibbs
from hmcvi.kernels.mcmc.retarget import tempered
from hmcvi.sampling import Draws, compiling
from tests.support.problems import F64, Mixture
from tests.support.sampling_runs import BANANA, assert_same_draws, quick
from tests.support.statistics import assert_uniform
from tests.support.targets import PLANE

PROBLEM = Mixture()
BASE = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2, dtype=F64), 2.0), 1)

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler warns about itself


def run(kernel: HMC, start: Tensor, num_steps: int = 4) -> tuple[Phase, list[dict[str, Tensor]]]:
    generator, state, reports = torch.Generator().manual_seed(0), kernel.init(start), []
    for _ in range(num_steps):
        state, info = kernel.step(state, generator)
        reports.append(info)
    return state, reports


def log_prob(z: Tensor, centre: Tensor) -> Tensor:
    """Each chain towards its own centre; no number beyond 8."""
    inside = z[..., 0] < 8
    return (-0.5 * (z - centre).square().sum(-1) - 0.1 * z[..., 0] ** 4).where(inside, torch.nan)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"persistence": 0.6}, {"jitter": 0.5}], ids=["whole", "stepwise"])
def test_draws_and_statistics_are_the_eager_ones(options: dict[str, float]) -> None:
    """One density per chain, a full stop at NaN, and a new step size and metric on the way."""
    torch.manual_seed(0)
    centre = torch.randn(6, 2, dtype=F64)
    start = torch.cat([centre[:5], torch.tensor([[7.9, 0.0]], dtype=F64)])
    metric = DiagonalMetric(torch.zeros(2, dtype=F64))
    kernels = [
        HMC(Density(log_prob, centre), 0.7, 3, metric, compile=compile, **options)
        for compile in (False, True)
    ]
    for step_size, log_scale in ((0.7, 0.0), (0.4, 0.3)):
        changed = DiagonalMetric(torch.full((2,), log_scale, dtype=F64))
        eager, compiled = (
            run(kernel.replace(step_size=torch.tensor(step_size), metric=changed), start)
            for kernel in kernels
        )
        for found, wanted in zip(compiled[0], eager[0], strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
        for found_info, wanted_info in zip(compiled[1], eager[1], strict=True):
            torch.testing.assert_close(found_info, wanted_info, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert any(info["diverged"].any() for info in eager[1] + compiled[1])


def test_warm_up_and_resumption_compile_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled.append(f) or f)
    kernel = HMC(PROBLEM.density, 0.5, 3, compile=True)
    draws = hmcvi.sample(kernel, PROBLEM.draw_base(8), 20, num_warmup=60, progress=False)
    draws.resume(5)
    assert len(compiled) == 1


@pytest.mark.slow
def test_new_step_sizes_and_masses_need_no_new_program() -> None:
    """A metric of another kind needs one; counted by the compiler itself."""
    kernel = HMC(Density(lambda z: -0.5 * z.square().sum(-1)), 0.3, 2, compile=True)
    programs = []
    for changed in (
        kernel,
        kernel.replace(step_size=torch.tensor(0.1)),
        kernel.replace(metric=DiagonalMetric(torch.zeros(2))),
        kernel.replace(metric=DiagonalMetric(torch.ones(2)), step_size=torch.tensor(0.2)),
    ):
        run(changed, torch.ones(8, 2))
        programs.append(counters["stats"]["unique_graphs"])
    assert [count - programs[0] for count in programs] == [0, 0, 1, 1]


@pytest.mark.slow
def test_other_numbers_of_chains_need_at_most_one_more_program() -> None:
    """The first is for as many as there were, the second for all; unless the compiler has met other sizes."""
    kernel = HMC(Density(lambda z: -0.5 * z.square().sum(-1)), 0.3, 2, compile=True)
    programs = []
    for num_chains in (8, 9, 20, 33):
        run(kernel, torch.ones(num_chains, 2))
        programs.append(counters["stats"]["unique_graphs"])
    assert programs[1] - programs[0] <= 1 and programs[1:] == programs[1:2] * 3


@pytest.mark.slow
def test_annealing_is_one_program() -> None:
    """For its pilot run, which has other chains, and for every temperature; the estimate is the eager one."""
    target = Density(lambda z: -0.5 * (z - 1).square().sum(-1))
    before = counters["stats"]["unique_graphs"]
    eager, compiled = (
        ais(BASE, target, 30, 100, compile=compile, progress=False) for compile in (False, True)
    )
    assert counters["stats"]["unique_graphs"] - before == 1
    torch.testing.assert_close(compiled.log_weight, eager.log_weight, rtol=1e-6, atol=1e-6)
    exact = torch.ones(2, dtype=F64)
    before = counters["stats"]["unique_graphs"]
    bidirectional(BASE, target, exact, 30, 100, compile=True, progress=False)
    assert counters["stats"]["unique_graphs"] - before == 1
    with pytest.raises(ValueError, match="build yours with compile=True"):
        ais(BASE, target, 30, 4, kernel=lambda density: HMC(density, 0.5, 1), compile=True)


def test_a_block_of_gibbs_is_not_compiled() -> None:
    with pytest.raises(ValueError, match="compile=False"):
        Gibbs([(slice(0, 2), HMC(PROBLEM.density, 0.5, 3, compile=True))])


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*arguments: object) -> None:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", lambda f, **options: no_compiler)
    start = PROBLEM.draw_base(4)
    wanted, _ = run(HMC(PROBLEM.density, 0.5, 3), start)
    with pytest.warns(RuntimeWarning, match=r"not compiled: no C\+\+ compiler"):
        found, _ = run(HMC(PROBLEM.density, 0.5, 3, compile=True), start)
    torch.testing.assert_close(found.position, wanted.position)


def test_a_mistake_in_the_model_is_its_own_error() -> None:
    def broken(z: Tensor) -> Tensor:
        raise KeyError("mistake")

    with pytest.raises(KeyError, match="mistake"):
        Compiled(broken, "it")(torch.zeros(2))


@pytest.mark.slow
def test_temperatures_are_inputs_of_one_program() -> None:
    """Annealing compiles once: β and the step size may be others at every step."""
    torch.manual_seed(0)
    start = torch.randn(6, 2, dtype=F64)
    density = Density(log_prob, start, base=PROBLEM.base)
    kernels = [HMC(density, 0.7, 2, compile=compile) for compile in (False, True)]
    states, recompiled = [kernel.init(start) for kernel in kernels], []
    for beta in torch.linspace(0.1, 1.0, 5, dtype=F64):
        before = counters["stats"]["unique_graphs"]
        for index, kernel in enumerate(kernels):
            tuned = kernel.replace(step_size=0.9 - 0.4 * beta[None])
            generator = torch.Generator().manual_seed(1)
            states[index], _ = tempered(tuned, beta).step(states[index], generator)
        recompiled.append(counters["stats"]["unique_graphs"] - before)
        torch.testing.assert_close(states[1].position, states[0].position, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(states[1].grad, states[0].grad, rtol=1e-9, atol=1e-9)
    assert recompiled[0] > 0 and recompiled[1:] == [0] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "num_chains"),
    [({"persistence": 0.6, "num_steps": 3}, 6), ({"num_steps": None}, 6), ({"num_steps": None}, 18)],
    ids=["of one length", "of any length", "by column"],
)
def test_several_transitions_are_the_eager_ones(settings: dict[str, Any], num_chains: int) -> None:
    """One program for all step sizes, masses and lengths, and for any number of transitions."""
    torch.manual_seed(0)
    centre = torch.randn(num_chains, 2, dtype=F64)
    start = torch.cat([centre[:-1], torch.tensor([[7.9, 0.0]], dtype=F64)])
    compiled = HMC(Density(log_prob, centre), 0.7, **settings, compile=True, chunk=5)
    state, wanted, counted = compiled.init(start), compiled.init(start), []
    generator, again = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    for step_size, log_scale, count in ((0.7, 0.0, 5), (0.4, 0.3, 7), (0.5, 0.1, 1), (0.5, 0.1, 3)):
        metric = DiagonalMetric(torch.full((2,), log_scale, dtype=F64))
        changed = {"step_size": torch.tensor(step_size, dtype=F64), "metric": metric}
        if settings["num_steps"] is None:
            changed["num_steps"] = count
        kernel = compiled.replace(**changed)
        state, states, infos = kernel.steps(state, generator, count)
        counted.append(counters["stats"]["unique_graphs"])
        wanted, expected, reports = kernel.replace(compile=False).steps(wanted, again, count)
        for found, part in zip(states, expected, strict=True):
            if part is not None:
                torch.testing.assert_close(found, part, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(infos, reports, rtol=1e-9, atol=1e-9, equal_nan=True)
        torch.testing.assert_close(state.position, wanted.position, rtol=1e-9, atol=1e-9)
    assert counted == counted[:1] * len(counted)


@pytest.mark.slow
def test_in_how_many_calls_changes_nothing() -> None:
    """To the last bit, so that clocks may decide it."""
    kernel = HMC(BANANA, 0.3, compile=True)
    start = kernel.init(torch.randn(8, 3, dtype=F64))
    generator = torch.Generator().manual_seed(0)
    _, whole, _ = kernel.steps(start, generator, 12)
    generator.manual_seed(0)
    state, parts = start, []
    for count in (1, 7, 3, 1):
        state, states, _ = kernel.steps(state, generator, count)
        parts.append(states.position)
    assert torch.equal(torch.cat(parts), whole.position)


@pytest.mark.slow
def test_data_may_share_memory_and_distributions_check_their_arguments() -> None:
    """Columns of one table, used twice; a validated distribution; a scale that can become negative."""
    table = torch.randn(20, 2, dtype=F64)
    x, y = table[:, 0], table[:, 1]

    def regression(z: Tensor) -> Tensor:
        error = torch.distributions.Normal(z[..., :1] * x, 1.0 + z[..., 1:] * 0.1)
        return error.log_prob(y).sum(-1) - 0.5 * z.square().sum(-1) + table.T.sum() - table.T.square().sum()

    start = torch.randn(4, 2, dtype=F64)
    (found, _), (wanted, _) = (
        run(HMC(Density(regression), 0.2, jitter=0.5, num_steps=3, compile=compile), start)
        for compile in (True, False)
    )
    torch.testing.assert_close(found.position, wanted.position)


def test_a_factor_that_does_not_exist_fails_its_chain_alone() -> None:
    def log_prob(z: Tensor) -> Tensor:
        root = torch.linalg.cholesky(torch.diag_embed(z) + 0.1)
        return -root.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    z = torch.tensor([[1.0, 2.0], [-1.0, 2.0], [3.0, 0.5]], dtype=F64)
    density = Density(log_prob)
    with torch.no_grad():
        traced = Traced(density.value_and_grad, z[:2] + 5)
        value, grad = traced.graph(z, *traced.constants())
    wanted, slope = density.value_and_grad(z)
    assert value.isnan().tolist() == [False, True, False]
    torch.testing.assert_close(value, wanted, equal_nan=True)
    torch.testing.assert_close(grad[::2], slope[::2])


def test_columns_of_one_table_are_traced_as_inputs() -> None:
    table = torch.ones(3, 2, dtype=F64)
    first, second = table[:, 0], table[:, 1]
    traced = Traced(lambda z: z @ first + second.sum(), torch.ones(4, 3, dtype=F64))
    table *= 2  # what the function sees, the graph sees
    z = torch.ones(5, 3, dtype=F64)
    assert traced.fits(z) and not traced.fits(z[:1]) and not traced.fits(z.float())
    assert traced.graph(z, *traced.constants()).tolist() == [12.0] * 5
    assert len({tensor.data_ptr() for tensor in traced.constants()}) == 2
    branching = Traced(lambda z: z.sum() if z.shape[0] > 4 else z, z)
    assert branching.fits(torch.ones(6, 3, dtype=F64)) and not branching.fits(torch.ones(4, 3, dtype=F64))


@pytest.mark.parametrize("thin", [1, 3])
def test_a_run_in_chunks_goes_on_in_the_middle_of_one(
    thin: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch, "compile", lambda f, **options: f)
    kernel = HMC(BANANA, 0.3, 2, persistence=0.8, compile=True, chunk=4)
    whole, seen = quick(kernel, 12, 30, thin=thin), []
    part = quick(kernel, 5, 30, thin=thin, callback=lambda index, state, info: seen.append(state.position))
    torch.testing.assert_close(torch.stack(seen, 1), part.position, rtol=0, atol=0)
    assert_same_draws(part.resume(4, progress=False).resume(3, progress=False), whole)
    part.save(tmp_path / "draws.pt")
    assert_same_draws(Draws.load(tmp_path / "draws.pt", kernel).resume(7, progress=False), whole)


@pytest.mark.parametrize("persistence", [0.0, 0.7])
def test_exact_draws_stay_exact_in_chunks(persistence: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda f, **options: f)
    torch.manual_seed(0)
    target = PLANE["banana"]
    kernel = HMC(Density(target.log_prob), 0.4, 3, persistence=persistence, compile=True, chunk=3)
    state = kernel.init(target.draw(20_000))
    state, states, _ = kernel.steps(state)
    state, states, _ = kernel.steps(state)
    for position in states.position:
        assert_uniform(target.uniforms(position))


@pytest.mark.parametrize(
    "settings",
    [{"compile": False}, {"num_steps": None}, {"num_steps": 17}, {}, {"chunk": 1}],
    ids=["eager", "random length", "long", "short", "one by one"],
)
def test_several_at_once_are_those_made_one_by_one(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda f, **options: f)
    kernel = HMC(PROBLEM.density, 0.5, **{"num_steps": 3, "compile": True, "chunk": 3, **settings})
    start = kernel.init(PROBLEM.draw_base(4))
    last, states, infos = kernel.steps(start, torch.Generator().manual_seed(0), 3)
    state, generator = start, torch.Generator().manual_seed(0)
    # of given length and in one program, single steps are eager: another order of rounding
    exact = {} if kernel.in_one_call and kernel.num_steps == 3 else {"rtol": 0, "atol": 0}
    for index in range(3):
        state, info = kernel.step(state, generator)
        torch.testing.assert_close(states.position[index], state.position, **exact)
        for name, value in info.items():
            torch.testing.assert_close(infos[name][index], value, **exact)
    torch.testing.assert_close(last.position, state.position, **exact)


def test_compilation_begins_when_it_pays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After so many gradients, in warm-up or later, and there too in a run of several parts."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: compiled.append(f) or f)
    monkeypatch.setattr(compiling, "COMPILATION", 0.0)
    monkeypatch.setattr(compiling, "COMPILATION_EACH", 400 * compiling.SAVED_EACH)
    kernel = HMC(BANANA, 0.3, 5, jitter=0.5)
    part = quick(kernel, 20, 30)
    assert not compiled
    whole = quick(kernel, 60, 30)
    assert len(compiled) == 1
    assert_same_draws(part.resume(33, progress=False).resume(7, progress=False), whole)
    part.save(tmp_path / "draws.pt")
    assert_same_draws(Draws.load(tmp_path / "draws.pt", kernel).resume(40, progress=False), whole)
    assert len(compiled) == 1
    quick(HMC(BANANA, 0.3, 5, jitter=0.5, compile=False), 60, 30)
    assert len(compiled) == 1
    quick(HMC(BANANA, 0.3, 5, jitter=0.5), 1, 100)
    assert len(compiled) == 2


def test_a_chunk_has_at_least_one_transition() -> None:
    with pytest.raises(ValueError, match="chunk must be at least 1, got 0"):
        HMC(PROBLEM.density, 0.5, 3, chunk=0)
