"""Typed configuration: YAML files and key=value overrides, checked against dataclasses."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hmcvi.training.config_checks import GIVEN, ConfigError, check
from hmcvi.training.config_layers import parse_layer, parse_overrides, read_layers

__all__ = ["GIVEN", "Config", "ConfigError", "changed", "flat", "load_config", "parse_config", "to_yaml"]


@dataclass
class DataConfig:
    name: str = "digits"  # digits, mnist, mnist_binarized, omniglot; npz:…, images:…, package.module:function
    root: str | None = None  # folder with the files; missing ones are downloaded
    download: bool = True
    validation: int | None = None  # training images held out; None: the data set's own choice
    limit: int | None = None  # at most so many training images
    size: Any = None  # of images:FOLDER, a number or [height, width]; null: that of the files
    binarize: str = "dynamic"  # dynamic: redrawn for every batch; threshold: at 0.5; none


@dataclass
class ModelConfig:
    latent_dim: int = 2
    likelihood: str = "bernoulli"  # bernoulli, gaussian
    network: str = "mlp"  # mlp, conv: convolutions around an mlp
    encoder: str | None = None  # package.module:Class of your own, in place of the network's
    decoder: str | None = None
    hidden: list[int] = field(default_factory=lambda: [200, 200])
    min_scale: float = 0.05  # of the pixels' noise, which a built-in gaussian decoder learns above it
    slope: float | None = None  # of a decoder that starts with bends all over z, and q0 with scales 1/slope


@dataclass
class ChainConfig:
    kind: str = "hmc"  # hmc, hvi, hvae, annealed, ldvi, langevin, flow, flow-hmc, stochastic-flow, none
    num_hmc: int = 3  # HMC transitions, temperatures of a path, or moves after a layer of a stochastic flow
    num_leapfrog: int = 4
    num_candidates: int = 1  # of a path: draws of the base of which it starts from one; 1, 2, 4, …
    partial: bool | float = False  # true: learn α; a number: fix it
    mass: str = "global"  # identity, global, nn, low-rank, full
    accept: str | None = None  # simple, nn
    step_size: str = "global"  # global, dimension, nn
    reverse: str = "gaussian"  # distribution of the reverse momentum models: gaussian, mixture, flow
    reverse_sees: list[str] = field(default_factory=lambda: ["position"])  # position, force, standardised
    coordinates: str = "data"  # data: z itself; encoder: z standardised by the encoder's posterior
    force: str = "full"  # bf16, subset(PIXELS), surrogate(RANK): cheaper forces, weights stay exact
    control: str | None = None  # learned drifts of langevin, which see reverse_sees: reverse, both
    move: str = "langevin"  # between the layers of a stochastic-flow: langevin, hmc
    initial_step_size: float = 0.05
    max_energy_error: float | None = None  # at which trajectories turn back; null: 30 on paths, 1000 else
    hidden: list[int] = field(default_factory=lambda: [200, 200])
    flow: str = "iaf"  # planar, iaf, coupling
    num_flows: int = 2
    tempering: bool = True  # of hvae
    memory: str = "store"  # checkpoint: compute steps again; reversible: and follow trajectories back


@dataclass
class ObjectiveConfig:
    alpha: float = 1.0  # Rényi order: 1 is the ELBO, 0 the IWAE bound
    num_samples: int = 1  # K
    acceptance_gradient: str = "score"  # score (unbiased), pathwise (as in the paper)
    gradient: str = "total"  # total, or dreg: doubly reparameterised in the encoder's parameters


@dataclass
class TrainConfig:
    pretrain_epochs: int = 150  # of the plain VAE
    epochs: int = 100  # of the chain, from the VAE's weights (of the VAE itself if chain.kind is none)
    init_from: str | None = None  # run whose encoder and decoder to start from, instead of pre-training
    freeze: list[str] = field(default_factory=list)  # encoder, decoder: not trained with the chain
    batch_size: int = 100
    accumulate: int = 1  # parts of a batch that are computed one after another, to save memory
    optimizer: str = "adam"  # adam; muon: for the matrices, with adam for all other parameters
    lr: float = 1e-3
    pretrain_lr: float = 1e-3
    schedule: str = "cosine"  # cosine, constant, plateau: a third whenever validation no longer improves
    plateau_epochs: int = 10  # without a better validation bound, after which a plateau's rate falls
    patience: int | None = None  # epochs without a better validation bound, after which a stage ends
    warmup_epochs: float = 1.0
    weight_decay: float = 0.0  # of matrices, times the learning rate, per step
    output_lr: float = 1.0  # times lr: for the encoder's last layer
    deform: float = 0.0  # 1: the encoder learns from deformed images too, turned by 5°, stretched by 5 % …
    clip_norm: float | None = 100.0
    average: float = 0.0  # decay per step of the moving average of the weights that is kept; 0: none
    compile: bool = False  # compile the force
    device: str = "cpu"
    threads: int | None = None  # of torch on the CPU; null: all. One is faster for small models
    validate_every: int = 1  # epochs
    checkpoint_seconds: float = 20.0  # between checkpoints, also in the middle of an epoch


@dataclass
class EvaluateConfig:
    num_draws: int = 5  # of the test set: binarisations and chains
    bound_samples: int = 1  # K of the reported bound
    nll: str = "is"  # is: importance sampling; ais: annealed importance sampling, slower and closer
    nll_samples: int = 1000  # S of importance sampling; 0: no NLL, by either method
    ais_chains: int = 16  # for each image
    ais_temperatures: int = 300
    nll_draws: int | None = None  # how many draws get an NLL; null: all
    max_images: int | None = None  # of the test set
    validation_nll_samples: int = 100  # for TensorBoard; 0: none
    images_every: int = 10  # epochs between pictures and histograms in TensorBoard


@dataclass
class Config:
    seed: int = 0
    name: str | None = None  # of the run; None: a time stamp
    runs: str = "runs"  # folder of all runs
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    chain: ChainConfig = field(default_factory=ChainConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)


WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    list[int]: "a list of whole numbers, such as [200,200]",
    list[str]: "a list in brackets, such as [a,b]",
    NoneType: "null",
}

# what a run may change at any time: where it computes, and how it is evaluated
FREE = (
    "evaluate.",
    "runs",
    "data.root",
    "data.download",
    "train.device",
    "train.threads",
    "train.checkpoint_seconds",
)


def load_config(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """The defaults, overlaid by a YAML file (and the file its `base:` names), then by key=value pairs."""
    return _checked([*([] if path is None else read_layers(Path(path))), *parse_overrides(overrides)])


def parse_config(text: str, overrides: Sequence[str] = ()) -> Config:
    """The inverse of `to_yaml`, overlaid by key=value pairs."""
    return _checked([parse_layer(text, "the configuration"), *parse_overrides(overrides)])


def to_yaml(config: Config) -> str:
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def flat(config: Config) -> dict[str, Any]:
    """All settings by their full names, such as train.lr."""
    settings: dict[str, Any] = {}
    for name, value in asdict(config).items():
        section = value if isinstance(value, dict) else None
        settings |= {name: value} if section is None else {f"{name}.{key}": v for key, v in section.items()}
    return settings


def changed(before: Config, now: Config) -> dict[str, tuple[Any, Any]]:
    """Settings that decide what a run trains and that differ, {name: (before, now)}."""
    old, new = flat(before), flat(now)
    return {key: (old[key], new[key]) for key in new if new[key] != old[key] and not key.startswith(FREE)}


@functools.cache
def _schema() -> tuple[Any, list[str]]:
    """The defaults, of which `merge` makes a copy, and the full names of all settings."""
    schema = OmegaConf.structured(Config)
    return schema, list(_keys(schema))


def _checked(layers: Sequence[DictConfig]) -> Config:
    merged, known = _schema()
    for layer in layers:
        _refuse_unknown(layer, known)
        try:
            merged = OmegaConf.merge(merged, layer)
        except OmegaConfBaseException as error:
            raise ConfigError(_mismatch(layer, error)) from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{', '.join(_keys(layer))}: {error}") from None
    config = cast(Config, OmegaConf.to_object(merged))
    check(config, flat(config))
    return config


def _mismatch(layer: DictConfig, error: OmegaConfBaseException) -> str:
    """What a setting takes, and what it was given."""
    key = str(error.full_key).partition("[")[0]
    if key not in (kinds := _kinds()):
        return f"{key}: {str(error).splitlines()[0]}"
    given = OmegaConf.select(layer, key)
    shown = "null" if given is None else f"{given!r}"
    return f"{key} takes {kinds[key]}, got {shown}"


@functools.cache
def _kinds() -> dict[str, str]:
    """What each setting takes, in words, by its full name."""
    found: dict[str, str] = {}
    for name, kind in get_type_hints(Config).items():
        keys = get_type_hints(kind) if is_dataclass(kind) else None
        parts = {name: kind} if keys is None else {f"{name}.{key}": own for key, own in keys.items()}
        for key, own in parts.items():
            options = get_args(own) if isinstance(own, UnionType) else (own,)
            found[key] = " or ".join(WORDS.get(option, "a value") for option in options)
    return found


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Full names of all values."""
    for name in node:
        child = node[name]
        if isinstance(child, DictConfig) and len(child):
            yield from _keys(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _refuse_unknown(layer: DictConfig, known: Sequence[str]) -> None:
    if "train.precision" in _keys(layer):
        raise ConfigError(
            "train.precision is chain.force=bf16: the forces of a chain may be rounded, its weights may not"
        )
    leaves = {name.rsplit(".", 1)[-1]: name for name in known}
    for key in _keys(layer):
        if key not in known:
            near = difflib.get_close_matches(key[:100], known, 1, 0.7) or [
                leaves[leaf]
                for leaf in difflib.get_close_matches(key.rsplit(".", 1)[-1][:100], leaves, 1, 0.6)
            ]
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
            raise ConfigError(f"unknown configuration key {key[:100]}; {hint}")
