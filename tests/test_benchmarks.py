"""Benchmarks are listed, run at tiny sizes, and add up what they measure."""

from __future__ import annotations

import argparse
import doctest
import importlib
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks import BENCHMARKS, measuring, nodes, report, report_format, scaling, suite
from benchmarks.annealing import agreement
from benchmarks.guide_table import markdown
from benchmarks.profiling import Stopwatch
from benchmarks.sampler_problems import PROBLEMS, reference
from benchmarks.suite import APART, SUITE
from benchmarks.train_step import multiply_adds
from hmcvi import Density
from hmcvi.sampling.starts import draw_starts

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_lists_every_benchmark_with_a_line() -> None:
    done = run()
    assert done.returncode == 0
    for name in BENCHMARKS:
        assert any(line.split()[:1] == [name] and len(line.split()) > 3 for line in done.stdout.splitlines())


def test_unknown_name_is_refused_with_the_list() -> None:
    done = run("speed")
    assert done.returncode == 2 and not done.stdout
    assert "'speed'" in done.stderr and "train_step" in done.stderr


def test_every_module_belongs_to_a_benchmark() -> None:
    """A benchmark has `run(args)`; what has none is a part of one."""
    for path in (ROOT / "benchmarks").glob("*.py"):
        assert (path.stem in BENCHMARKS) == ("\ndef run(args: argparse.Namespace)" in path.read_text()), path


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [("annealing", "--engines", "eager"), ("profiling", "digits")],
    ids=lambda arguments: arguments[0],
)
def test_runs_quickly(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "lines.json"
    done = run(*arguments, "--quick", "--threads", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    record = json.loads(line)
    assert record["benchmark"] == arguments[0] and record["repeats"] == 2
    assert file.read_text() == done.stdout


@pytest.mark.parametrize(
    "module", [measuring, nodes, report_format, scaling], ids=lambda module: module.__name__
)
def test_documented_examples(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_of_samplers_are_finite_and_have_moments(name: str) -> None:
    problem = PROBLEMS[name]()
    density = Density(problem.make(torch), dim=problem.dim)
    starts = draw_starts(density, 16, 0)
    value, grad = density.value_and_grad(starts)
    assert value.isfinite().all() and grad.isfinite().all()
    moments = reference(name, problem)
    assert all(len(values) == problem.dim for values in moments.values()) and (moments["sd"] > 0).all()
    assert (moments["mean_error"] < 0.05 * moments["sd"]).all()


@pytest.mark.slow
def test_samplers_run_quickly_without_peers() -> None:
    done = run("samplers", "--quick", "--peers")
    assert done.returncode == 0, done.stderr
    *runs, row, total = map(json.loads, done.stdout.splitlines())
    assert len(runs) == 2 and all(record["converged"] for record in runs)
    assert row["hmcvi"] == "2 of 2" and (total["hmcvi_converged"], total["silent"]) == (1, 0)


def test_exponent_of_a_power_law() -> None:
    sizes = [1.0, 3.0, 10.0, 30.0, 100.0]
    assert scaling.exponent(sizes, [7 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert scaling.exponent(sizes, [1.0, 1.0, *(size**2 for size in sizes[2:])]) == pytest.approx(2.0)


def test_stopwatch_counts_every_second_once() -> None:
    """Outer 1 s, inner 2 s, outer 4 s, inner 8 s, outer within inner 16 s, inner 32 s, outer 64 s."""
    times = iter([0, 1, 3, 7, 15, 31, 63, 127])
    watch = Stopwatch(clock=lambda: next(times))
    with watch.part("outer"):
        watch.wrap("inner", lambda: None)()
        with watch.part("inner"), watch.part("outer"):
            pass
    assert watch.seconds == {"outer": 1 + 4 + 16 + 64, "inner": 2 + 8 + 32}


@pytest.mark.parametrize(("difference", "agrees"), [(1.0, True), (6.0, False)])
def test_engines_agree_within_errors_of_their_means(difference: float, agrees: bool) -> None:
    """Two runs of error √2 each: means of error 1, and a difference of error √2."""
    runs = {
        name: [
            {"log_z": log_z + shift, "std_error": 2**0.5, "ess": 9.0, "acceptance": 1.0} for shift in (-1, 1)
        ]
        for name, log_z in (("a", 0.0), ("b", difference))
    }
    record = agreement(runs)
    assert record["log_z_agrees"] == agrees
    assert record["log_z_differs_by_errors"] == pytest.approx(difference / 2**0.5, abs=0.01)


def test_multiply_adds_of_a_plain_vae() -> None:
    """Forward and backward into weights for all layers, into inputs for all but the images."""
    encoder, decoder = [(784, 200), (200, 200), (200, 40)], [(20, 200), (200, 200), (200, 784)]
    expected = sum(3 * a * b for a, b in encoder + decoder) - 784 * 200
    assert multiply_adds() == expected
    assert multiply_adds(num_samples=5) - expected == 4 * sum(3 * a * b for a, b in decoder)


def test_results_are_what_the_records_say() -> None:
    """RESULTS.md is made of results/ by a script; nothing in its tables is typed."""
    assert report.report() == report.RESULTS.read_text(), "python -m benchmarks report"


def test_text_of_the_results_has_no_tables() -> None:
    assert not [line for line in report.TEMPLATE.read_text().splitlines() if line.startswith("|")]


def test_the_suite_has_every_benchmark_of_speed() -> None:
    assert SUITE.keys() | set(APART) == set(BENCHMARKS) and not SUITE.keys() & set(APART)


@pytest.mark.parametrize("name", SUITE)
def test_commands_of_the_suite_parse(name: str) -> None:
    for command in SUITE[name].commands():
        _, _, _, benchmark, *arguments = shlex.split(command.removeprefix(suite.ONE_THREAD))
        parser = argparse.ArgumentParser()
        parser.add_argument("--json")
        importlib.import_module(f"benchmarks.{benchmark}").configure(parser)
        parser.parse_intermixed_args(arguments)  # exits if it cannot


def test_the_suite_replaces_records_of_parts_that_succeed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / suite.RECORDS).mkdir(parents=True)
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    part = SUITE["kernels"]
    (tmp_path / part.file).write_text("before\n")
    codes = iter([0, 1, *[0] * len(part.runs)])

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        with Path(words[words.index("--json") + 1]).open("a") as file:
            file.write(f"{words[4]}\n")
        return subprocess.CompletedProcess(words, next(codes))

    monkeypatch.setattr(subprocess, "run", run)
    assert not suite.run_part(part, None) and (tmp_path / part.file).read_text() == "before\n"
    assert suite.run_part(part, "python") and (tmp_path / part.file).read_text().split() == [
        run.split()[1] for run in part.runs
    ]
    assert not list(tmp_path.rglob("*.new"))


def test_the_list_of_the_suite() -> None:
    done = run("all", "--list")
    assert done.returncode == 0 and all(name in done.stdout for name in SUITE)
    assert run("all", "speed").returncode == 2


def test_simulated_nodes_wait_for_the_slowest_and_for_each_other() -> None:
    network = nodes.Network(latency=0.1, bandwidth=100.0)
    assert nodes.simulated([2.0], 1, network, [1000]) == 2.0
    assert nodes.simulated([2.0], 4, network, [1000, 0]) == pytest.approx(2.0 + 6 * (0.1 + 2.5) + 0.6)
    mean = nodes.simulated([1.0, 3.0], 2, network, [])
    assert abs(mean - 2.5) < 4 * (0.75 / nodes.SIMULATED) ** 0.5  # three of four pairs have a slow one
    assert nodes.speed_ups([8.0] * 7, grows=True) == list(nodes.NODES)


def test_a_node_has_its_share_of_the_work_and_all_parameters_to_send() -> None:
    _, alone = nodes.node_steps(16, 1, 1)
    steps, messages = nodes.node_steps(16, 4, 2)
    assert not alone and len(steps) == 2 and max(messages) > 1e6


def test_table_of_guides_joins_records_of_one_model(tmp_path: Path) -> None:
    figures = {"mean error": 0.1, "log sd error": 0.2}
    records = [
        {"seed": 0, "guides": {"A": {"bound": -1.5, **figures}}},
        {"seed": 1, "guides": {"A": {"bound": -1.25, **figures}}},
        {"seed": 0, "guides": {"B": {"bound": None, "mean error": None, "log sd error": None}}},
    ]
    path = tmp_path / "guides.jsonl"
    path.write_text("".join(json.dumps({"model": "m", "log Z": -1.0, **each}) + "\n" for each in records))
    assert "| m | 0.50, 0.25 | fails |" in markdown(path, ["A", "B"]).splitlines()
