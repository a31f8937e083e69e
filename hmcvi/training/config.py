"""Typed configuration: YAML files and key=value overrides, checked against dataclasses."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hmcvi.chain import MEMORY
from hmcvi.flows.force import FORCES


class ConfigError(ValueError):
    """The configuration asks for something that cannot be."""


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
    slope: float | None = None  # of a decoder that starts with bends all over z, and q0 with scales 1/slope


@dataclass
class ChainConfig:
    kind: str = "hmc"  # hmc, hvi, hvae, annealed, ldvi, langevin, flow, flow-hmc, stochastic-flow, none
    num_hmc: int = 3  # HMC transitions, temperatures of a path, or moves after a layer of a stochastic flow
    num_leapfrog: int = 4
    partial: bool | float = False  # true: learn α; a number: fix it
    mass: str = "global"  # identity, global, nn, low-rank, full
    accept: str | None = None  # simple, nn
    step_size: str = "global"  # global, dimension, nn
    reverse: str = "gaussian"  # distribution of the reverse momentum models: gaussian, mixture, flow
    reverse_sees: list[str] = field(default_factory=lambda: ["position"])  # position, force, standardised
    coordinates: str = "data"  # data: z itself; encoder: z standardised by the encoder's posterior
    force: str = "full"  # bf16: matrix products of forces in bfloat16, weights stay exact
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


GIVEN = "given"  # in Python, to `hmcvi.training.fit`
KINDS = (
    "hmc", "hvi", "hvae", "annealed", "ldvi", "langevin", "flow", "flow-hmc", "stochastic-flow", "none",
    GIVEN,
)  # fmt: skip
CHOICES = {
    "data.binarize": ("dynamic", "threshold", "none"),
    "model.likelihood": ("bernoulli", "gaussian"),
    "model.network": ("mlp", "conv"),
    "chain.kind": KINDS,
    "chain.mass": ("identity", "global", "nn", "low-rank", "full"),
    "chain.accept": (None, "simple", "nn"),
    "chain.step_size": ("global", "dimension", "nn"),
    "chain.coordinates": ("data", "encoder"),
    "chain.force": tuple(FORCES),
    "chain.control": (None, "reverse", "both"),
    "chain.move": ("langevin", "hmc"),
    "chain.reverse": ("gaussian", "mixture", "flow"),
    "chain.flow": ("planar", "iaf", "coupling"),
    "chain.memory": MEMORY,
    "objective.acceptance_gradient": ("score", "pathwise"),
    "objective.gradient": ("total", "dreg"),
    "train.optimizer": ("adam", "muon"),
    "train.schedule": ("cosine", "constant", "plateau"),
    "evaluate.nll": ("is", "ais"),
}
LEAST = {
    "seed": 0,
    "data.validation": 0,
    "data.limit": 1,
    "model.latent_dim": 1,
    "chain.num_hmc": 0,
    "chain.num_leapfrog": 1,
    "chain.num_flows": 0,
    "objective.num_samples": 1,
    "train.pretrain_epochs": 0,
    "train.epochs": 0,
    "train.batch_size": 1,
    "train.accumulate": 1,
    "train.plateau_epochs": 1,
    "train.patience": 1,
    "train.warmup_epochs": 0,
    "train.weight_decay": 0,
    "train.deform": 0,
    "train.validate_every": 1,
    "train.threads": 1,
    "evaluate.num_draws": 1,
    "evaluate.bound_samples": 1,
    "evaluate.nll_samples": 0,
    "evaluate.ais_chains": 2,
    "evaluate.ais_temperatures": 1,
    "evaluate.nll_draws": 1,
    "evaluate.max_images": 1,
    "evaluate.validation_nll_samples": 0,
    "evaluate.images_every": 1,
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
FREEZABLE = ("encoder", "decoder")
POSITIVE = (
    "model.slope",
    "chain.initial_step_size",
    "chain.max_energy_error",
    "train.lr",
    "train.pretrain_lr",
    "train.output_lr",
    "train.clip_norm",
    "train.checkpoint_seconds",
)


def load_config(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """The defaults, overlaid by a YAML file (and the file its `base:` names), then by key=value pairs."""
    return _checked([*([] if path is None else _read(Path(path))), *_parsed(overrides)])


def parse_config(text: str, overrides: Sequence[str] = ()) -> Config:
    """The inverse of `to_yaml`, overlaid by key=value pairs."""
    return _checked([cast(DictConfig, OmegaConf.create(text)), *_parsed(overrides)])


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


def _parsed(overrides: Sequence[str]) -> Iterator[DictConfig]:
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"expected key=value, got {override!r}")
        try:
            yield OmegaConf.from_dotlist([override])
        except (OmegaConfBaseException, YAMLError) as error:
            raise ConfigError(f"cannot read {override!r}: {error}") from None


def _read(path: Path) -> list[DictConfig]:
    try:
        layer = OmegaConf.load(path)
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}") from None
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if not isinstance(layer, DictConfig):
        raise ConfigError(f"{path} must hold sections of key: value pairs")
    base = layer.pop("base", None)
    return [*(_read(path.parent / base) if base is not None else []), layer]


def _checked(layers: Sequence[DictConfig]) -> Config:
    schema = OmegaConf.structured(Config)
    known = list(_keys(schema))
    merged = schema
    for layer in layers:
        _refuse_unknown(layer, known)
        try:
            merged = OmegaConf.merge(merged, layer)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from None
    _refuse_impossible(merged)
    return cast(Config, OmegaConf.to_object(merged))


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Full names of all values."""
    for name in node:
        child = None if OmegaConf.is_missing(node, name) else node[name]
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
            near = difflib.get_close_matches(key, known, 1, 0.7) or [
                leaves[leaf] for leaf in difflib.get_close_matches(key.rsplit(".", 1)[-1], leaves, 1, 0.6)
            ]
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
            raise ConfigError(f"unknown configuration key {key}; {hint}")


def _refuse_impossible(config: Any) -> None:
    for key, choices in CHOICES.items():
        if (value := OmegaConf.select(config, key)) not in choices:
            options = ", ".join("null" if c is None else c for c in choices)
            raise ConfigError(f"{key} must be one of {options}, got {value!r}")
    for key, least in LEAST.items():
        if (value := OmegaConf.select(config, key)) is not None and value < least:
            raise ConfigError(f"{key} must be at least {least}, got {value}")
    for key in POSITIVE:
        if (value := OmegaConf.select(config, key)) is not None and not value > 0:
            raise ConfigError(f"{key} must be positive, got {value}")
    for key in ("model.hidden", "chain.hidden"):
        if not (sizes := OmegaConf.select(config, key)) or min(sizes) < 1:
            raise ConfigError(f"{key} must be a list of layer sizes of at least 1, got {list(sizes)}")
    if not 0 <= (average := config.train.average) < 1:
        raise ConfigError(f"train.average must lie in [0, 1), got {average}")
    _refuse_freezing(config)
    _refuse_images_and_networks(config)
    partial = config.chain.partial
    if not isinstance(partial, bool) and not abs(partial) < 1:
        raise ConfigError(f"chain.partial is true, false or an α with |α| < 1, got {partial}")
    if config.model.likelihood == "gaussian" and config.data.binarize != "none":
        raise ConfigError("a gaussian likelihood models grey values: set data.binarize=none")
    if config.objective.gradient == "dreg" and config.chain.accept is not None:
        raise ConfigError(
            "objective.gradient=dreg is not for chains that accept or reject: set chain.accept=null"
        )


def _refuse_images_and_networks(config: Any) -> None:
    """Refuse sizes that are none, paths without a name, and a slope of networks that it is not for."""
    size, model = config.data.size, config.model
    sides = list(size) if isinstance(size, ListConfig) else [size, size]
    if size is not None and not (len(sides) == 2 and all(type(s) is int and s > 0 for s in sides)):
        raise ConfigError(f"data.size must be a number of pixels, [height,width] or null, got {size}")
    for part in ("encoder", "decoder"):
        if (path := model[part]) is not None and ":" not in path:
            raise ConfigError(f"model.{part} must be package.module:Class, got {path!r}")
    if model.slope is not None and (model.network != "mlp" or model.encoder or model.decoder):
        raise ConfigError(
            f"model.slope={model.slope:g} is for the encoder and decoder of model.network=mlp: set it to null"
        )


def _refuse_freezing(config: Any) -> None:
    """Refuse to freeze what is unknown, untrained, or all there is to train."""
    train = config.train
    if unknown := [name for name in train.freeze if name not in FREEZABLE]:
        raise ConfigError(f"train.freeze is a list of {', '.join(FREEZABLE)}, got {unknown[0]!r} in it")
    if train.freeze and config.chain.kind == "none":
        raise ConfigError("train.freeze is for training a chain, but chain.kind is none: choose a chain")
    if train.freeze and train.init_from is None and not train.pretrain_epochs:
        raise ConfigError(
            "train.freeze would keep random weights: train them first with train.pretrain_epochs, or take "
            "those of another run with train.init_from"
        )
