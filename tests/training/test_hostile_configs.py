"""Configurations that cannot be: one line, in bounded time, for every key."""

from __future__ import annotations

import os
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest

from hmcvi.training.config import Config, ConfigError, flat, load_config
from hmcvi.training.config_checks import RANGES
from hmcvi.training.sizes import refuse_beyond_memory
from tests.training.conftest import train


def numbers(kind: type = Config, prefix: str = "") -> list[str]:
    """The full names of all settings that are numbers."""
    hints, found = get_type_hints(kind), []
    for field in fields(kind):
        if is_dataclass(hint := hints[field.name]):
            found += numbers(hint, f"{field.name}.")
        elif hint in (int, float, int | None, float | None):
            found.append(prefix + field.name)
    return found


def test_every_number_has_a_range() -> None:
    assert set(numbers()) == set(RANGES)


@pytest.mark.parametrize("key", [*numbers(), "chain.partial"])
@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1e300", "1e30", "-1e30", "9" * 5000])
def test_numbers_that_are_none_are_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError):
        load_config(overrides=[f"{key}={value}"])


@pytest.mark.parametrize(
    "override",
    [
        "seed=${data.root}", "name=${oc.env:HOME}", "model.hidden={}", "model.hidden=???", "data=???",
        "model.hidden=[1,[2]]", "model.hidden=[1000000000]", "train.device=meta", "train.device=cpu:x",
        "name=../x", "name=/tmp/x", "name=a/b", "name=..", "name=", "name=" + "x" * 300, "name=é" * 150,
        "chain.reverse_sees=[all]", "train.lr=" + "[" * 5000, "train.lr=&a [*a]", "train.average=1",
        "seed=18446744073709551616", "a" * 200_000 + "=1", "train.lr=" + "1" * 200_000, "[ia=1",
        "data.validation==" + "1" * 5000, "data.binarize=" + "x" * 5000, "data.size=" + "x" * 5000,
    ],
    ids=lambda override: override[:30],
)  # fmt: skip
def test_hostile_settings_are_refused_by_one_line(override: str) -> None:
    if override == "name=":  # as no name at all
        assert load_config(overrides=[override]).name is None
        return
    began = time.monotonic()
    with pytest.raises(ConfigError) as error:
        load_config(overrides=[override])
    assert "\n" not in str(error.value) and len(str(error.value)) < 2000
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "content",
    [
        "base: config.yaml",
        "base: other.yaml",
        "base: 3",
        "base: [a]",
        "base: .",
        "x: &a [1]\ny: *a",
        "a: " * 1000,
        "{" * 20_000,
        "[" * 20_000,
        "#" * 200_000,
        "seed: ${seed}",
        "data: ???",
        "\ufeff\x07",
        "1: 2",
        "null: 2",
        "? [a, b]\n: 1",
        "seed: !!python/object/apply:os.system [exit]",
    ],
    ids=lambda content: content[:20],
)
def test_hostile_files_are_refused_by_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.yaml").write_text(content)
    (tmp_path / "other.yaml").write_text("base: config.yaml")
    began = time.monotonic()
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "config.yaml")
    assert "\n" not in str(error.value) and len(str(error.value)) < 2000
    assert time.monotonic() - began < 5


def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    for path in (tmp_path / "fifo.yaml", Path("/dev/zero"), tmp_path, tmp_path / ("x" * 300)):
        code, _, err = train("--config", str(path))
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.hidden=[1000000,1000000]"],
            "weights of encoder and decoder × 4 copies × 4 bytes each = 32,0",
        ),
        (["chain.hidden=[1000000,1000000]"], "weights of the chain"),
        (["objective.num_samples=1000000000"], "1,000,000,000 samples (objective.num_samples)"),
        (["evaluate.num_draws=1000000000"], "draws (evaluate.num_draws)"),
        (["evaluate.nll_samples=1000000000"], "samples (evaluate.nll_samples)"),
        (["evaluate.nll=ais", "evaluate.ais_chains=100000000"], "chains (evaluate.ais_chains)"),
    ],
)
def test_sizes_beyond_memory_are_refused_with_the_arithmetic(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        refuse_beyond_memory(load_config(overrides=overrides), 1000, 784, memory=16 * 10**9)
    assert message in str(error.value) and "more than the 16.0 GB of this machine: lower" in str(error.value)


def test_usual_sizes_fit_a_small_machine() -> None:
    refuse_beyond_memory(load_config(), 60_000, 784, memory=10**9)


def test_a_run_of_impossible_size_ends_before_it_begins(tmp_path: Path, small: list[str]) -> None:
    code, _, err = train(*small, "objective.num_samples=1000000000")
    assert code == 2 and "GB of this machine" in err and err.count("\n") == 1


def test_every_setting_is_finite_by_default() -> None:
    assert all(value == value for value in flat(Config()).values())
