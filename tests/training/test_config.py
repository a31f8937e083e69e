"""Configurations: typed, layered, and refused with a helpful sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from hmcvi.flows import Leapfrog
from hmcvi.training.build import build_chain
from hmcvi.training.config import Config, ConfigError, load_config, parse_config, to_yaml


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epoch=3", "train.epochs"),
        ("epochs=3", "train.epochs"),
        ("chain.num_leapfrogs=3", "chain.num_leapfrog"),
        ("trian.lr=1", "train.lr"),
        ("model.latent_dim=2.5", "model.latent_dim"),
        ("model.latent_dim=0", "at least 1, got 0"),
        ("chain.num_leapfrog=0", "at least 1, got 0"),
        ("chain.num_hmc=-1", "at least 0, got -1"),
        ("chain.partial=1.0", r"\|α\| < 1, got 1.0"),
        ("chain.partial=-1.5", "got -1.5"),
        ("chain.reverse=spline", "gaussian, mixture, flow, got 'spline'"),
        ("chain.mass=heavy", "identity, global, nn, low-rank, full, got 'heavy'"),
        ("chain.accept=always", "null, simple, nn"),
        ("chain.kind=nuts", "hmc, hvi"),
        ("chain.control=forward", "null, reverse, both, got 'forward'"),
        ("chain.move=slice", "langevin, hmc, got 'slice'"),
        ("objective.gradient=iwae", "total, dreg, got 'iwae'"),
        ("train.lr=0", "must be positive"),
        ("train.output_lr=0", "must be positive"),
        ("model.slope=-1", "must be positive"),
        ("train.deform=-1", "at least 0"),
        ("evaluate.nll_draws=0", "at least 1"),
        ("train.batch_size=0", "at least 1"),
        ("model.hidden=[]", "list of layer sizes"),
        ("model.likelihood=gaussian", "data.binarize=none"),
        ("train.lr=fast", "takes a number, got 'fast'"),
        ("seed=", "takes a whole number, got null"),
        ("model.hidden=200", r"takes a list of whole numbers, such as \[200,200\], got 200"),
        ("model.hidden=[wide]", r"model.hidden takes .* got \['wide'\]"),
        ("train.freeze=encoder", "takes a list in brackets"),
        ("chain.partial=some", "takes true or false or a number, got 'some'"),
        ("train.patience=long", "takes a whole number or null, got 'long'"),
        ("train", "expected key=value"),
        ("chain.hidden=[3", "cannot read"),
    ],
)
def test_bad_settings_are_refused_by_name(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(overrides=[override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["chain.num_candidates=4"], r"num_candidates=4 is for chain\.kind=annealed or ldvi, not hmc"),
        (["chain.control=both"], r"control=both is for chain\.kind=langevin, not hmc"),
        (["chain.kind=annealed", "chain.num_candidates=3"], "must be 1 or even, got 3"),
    ],
)
def test_settings_that_a_kind_of_chain_has_no_use_for(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(overrides=overrides)


def test_doubly_reparameterised_gradients_are_not_for_acceptance() -> None:
    assert load_config(overrides=["objective.gradient=dreg"]).objective.gradient == "dreg"
    with pytest.raises(ConfigError, match=r"set chain\.accept=null"):
        load_config(overrides=["objective.gradient=dreg", "chain.accept=simple"])


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        (["chain.kind=hmc"], 1000.0),
        (["chain.kind=annealed"], 30.0),
        (["chain.kind=ldvi"], 30.0),
        (["chain.kind=stochastic-flow", "chain.move=hmc"], 30.0),
        (["chain.kind=ldvi", "chain.max_energy_error=7"], 7.0),
    ],
    ids=str,
)
def test_the_energy_error_that_turns_back_is_that_of_the_method(overrides: list[str], limit: float) -> None:
    chain = build_chain(load_config(overrides=overrides).chain, 2, 3)
    limits = {step.max_energy_error for step in chain.modules() if isinstance(step, Leapfrog)}
    assert limits == {limit}


def test_later_layers_win_and_files_may_have_a_base(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("seed: 3\nmodel: {latent_dim: 5}\n")
    (tmp_path / "top.yaml").write_text("base: base.yaml\nmodel: {latent_dim: 7}\n")
    config = load_config(tmp_path / "top.yaml", ["chain.partial=0.3"])
    assert (config.seed, config.model.latent_dim, config.chain.partial) == (3, 7, 0.3)
    assert load_config(tmp_path / "top.yaml", ["model.latent_dim=9"]).model.latent_dim == 9
    assert load_config(overrides=["chain.partial=true"]).chain.partial is True


def test_yaml_round_trip() -> None:
    config = load_config(overrides=["chain.accept=nn", "data.root=~/somewhere", "train.clip_norm=null"])
    assert parse_config(to_yaml(config)) == config
    assert parse_config(to_yaml(Config())) == Config()


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [1", "model: {laten_dim: 2}\n", "\x00"])
def test_bad_files(tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    with pytest.raises(ConfigError):
        load_config(tmp_path / "bad.yaml")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration file"):
        load_config(tmp_path / "nothing.yaml")
