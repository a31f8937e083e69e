"""What settings may be: a range for every number, words to choose from, and what does not go together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hmcvi.chain import MEMORY
from hmcvi.dynamics.forces import force_of

LONGEST = 2000  # characters of an error, which may quote what the user wrote


class ConfigError(ValueError):
    """The configuration asks for something that cannot be."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= LONGEST else f"{text[:500]} … {text[-200:]}"


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
MANY = 10**9
# the least and the largest value of every number; None: positive
RANGES: Mapping[str, tuple[float | None, float]] = {
    "seed": (0, 2**64 - 1),
    "data.validation": (0, MANY),
    "data.limit": (1, MANY),
    "model.latent_dim": (1, 10**6),
    "model.min_scale": (None, 1e3),
    "model.slope": (None, 1e6),
    "chain.num_hmc": (0, 10**5),
    "chain.num_leapfrog": (1, 10**5),
    "chain.num_candidates": (1, 10**4),
    "chain.num_flows": (0, 10**4),
    "chain.initial_step_size": (None, 1e6),
    "chain.max_energy_error": (None, 1e12),
    "objective.alpha": (-1e3, 1e3),
    "objective.num_samples": (1, MANY),
    "train.pretrain_epochs": (0, MANY),
    "train.epochs": (0, MANY),
    "train.batch_size": (1, MANY),
    "train.accumulate": (1, MANY),
    "train.lr": (None, 1e3),
    "train.pretrain_lr": (None, 1e3),
    "train.plateau_epochs": (1, MANY),
    "train.patience": (1, MANY),
    "train.warmup_epochs": (0, MANY),
    "train.weight_decay": (0, 1e3),
    "train.output_lr": (None, 1e6),
    "train.deform": (0, 100),
    "train.clip_norm": (None, 1e12),
    "train.average": (0, 1),
    "train.threads": (1, 4096),
    "train.validate_every": (1, MANY),
    "train.checkpoint_seconds": (None, 1e9),
    "evaluate.num_draws": (1, MANY),
    "evaluate.bound_samples": (1, MANY),
    "evaluate.nll_samples": (0, MANY),
    "evaluate.ais_chains": (2, MANY),
    "evaluate.ais_temperatures": (1, MANY),
    "evaluate.nll_draws": (1, MANY),
    "evaluate.max_images": (1, MANY),
    "evaluate.validation_nll_samples": (0, MANY),
    "evaluate.images_every": (1, MANY),
}
FREEZABLE = ("encoder", "decoder")
# settings of a chain with a value for chains that have no use for them, and the kinds that have one
OF_KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "num_candidates": (1, ("annealed", "ldvi")),
    "control": (None, ("langevin",)),
}
SEEN = ("position", "force", "standardised")
LAYERS, WIDEST = 100, 10**6  # of a network
NAME_BYTES = 200  # of a run: a sweep adds to it, and file systems take 255
DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d{1,3})?")


def check(config: Any, settings: Mapping[str, Any]) -> None:
    """Refuse what cannot be.  settings: the same by their full names."""
    for key, choices in CHOICES.items():
        if settings[key] not in choices:
            options = ", ".join("null" if c is None else c for c in choices)
            raise ConfigError(f"{key} must be one of {options}, got {settings[key]!r}")
    for key, (least, most) in RANGES.items():
        _refuse_number(key, settings[key], least, most)
    for key in ("model.hidden", "chain.hidden"):
        _refuse_layers(key, settings[key])
    for key, known in {"train.freeze": FREEZABLE, "chain.reverse_sees": SEEN}.items():
        if unknown := [name for name in settings[key] if name not in known]:
            raise ConfigError(f"{key} is a list of {', '.join(known)}, got {unknown[0]!r} in it")
    if config.train.average == 1:
        raise ConfigError("train.average must lie in [0, 1), got 1.0")
    if config.name is not None:
        refuse_name(config.name)
    if not DEVICE.fullmatch(config.train.device):
        raise ConfigError(
            f"train.device must be cpu, cuda, mps or xpu, or one of several as cuda:1, "
            f"got {config.train.device!r}"
        )
    try:
        force_of(config.chain.force)
    except ValueError as error:
        raise ConfigError(f"chain.{error}") from None
    _refuse_freezing(config)
    _refuse_images_and_networks(config)
    _refuse_combinations(config)


def refuse_name(name: str) -> None:
    """Refuse a run a name that is not that of one folder."""
    if name in ("", ".", "..") or not name.isprintable() or "/" in name or "\\" in name:
        raise ConfigError(
            f"name must be that of a folder in runs, without slashes or dots alone, got {name!r}: "
            "another place is set by runs=FOLDER"
        )
    if len(name.encode(errors="surrogatepass")) > NAME_BYTES:
        raise ConfigError(f"name has {len(name)} characters, {name[:30]!r}…; use at most {NAME_BYTES} bytes")


def _refuse_number(key: str, value: Any, least: float | None, most: float) -> None:
    if value is None:
        return
    if least is None and not value > 0:
        raise ConfigError(f"{key} must be positive, got {value}")
    if least is not None and not value >= least:
        raise ConfigError(f"{key} must be at least {least:g}, got {value}")
    if not value <= most:
        raise ConfigError(f"{key} must be at most {most:g}, got {value}")


def _refuse_layers(key: str, sizes: Any) -> None:
    if not sizes or not all(type(size) is int and size >= 1 for size in sizes):
        raise ConfigError(f"{key} must be a list of layer sizes of at least 1, got {sizes}")
    if max(sizes) > WIDEST or len(sizes) > LAYERS:
        raise ConfigError(
            f"{key} has {len(sizes)} layers of up to {max(sizes)}: at most {LAYERS} of {WIDEST} can be built"
        )


def _refuse_combinations(config: Any) -> None:
    chain = config.chain
    for name, (none, kinds) in OF_KINDS.items():
        if (value := getattr(chain, name)) != none and chain.kind not in (*kinds, "none"):
            raise ConfigError(
                f"chain.{name}={value} is for chain.kind={' or '.join(kinds)}, not {chain.kind}: leave it out"
            )
    if chain.num_candidates > 1 and chain.num_candidates % 2:
        raise ConfigError(f"chain.num_candidates must be 1 or even, got {chain.num_candidates}")
    partial = chain.partial
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
    sides = list(size) if isinstance(size, list) else [size, size]
    if size is not None and not (len(sides) == 2 and all(type(s) is int and 0 < s < 10**5 for s in sides)):
        raise ConfigError(f"data.size must be a number of pixels, [height,width] or null, got {size}")
    for part in ("encoder", "decoder"):
        if (path := getattr(model, part)) is not None and ":" not in path:
            raise ConfigError(f"model.{part} must be package.module:Class, got {path!r}")
    if model.slope is not None and (model.network != "mlp" or model.encoder or model.decoder):
        raise ConfigError(
            f"model.slope={model.slope:g} is for the encoder and decoder of model.network=mlp: set it to null"
        )


def _refuse_freezing(config: Any) -> None:
    """Refuse to freeze what is untrained, or all there is to train."""
    train = config.train
    if train.freeze and config.chain.kind == "none":
        raise ConfigError("train.freeze is for training a chain, but chain.kind is none: choose a chain")
    if train.freeze and train.init_from is None and not train.pretrain_epochs:
        raise ConfigError(
            "train.freeze would keep random weights: train them first with train.pretrain_epochs, or take "
            "those of another run with train.init_from"
        )
