"""A training run: its folder, its stages, its summary."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hmcvi.chain import Chain
from hmcvi.data import DataError, Images, load_images
from hmcvi.flows import compile_trajectories, set_memory
from hmcvi.internal.processes import ALONE, Processes
from hmcvi.models import VAE
from hmcvi.training.board import Board
from hmcvi.training.build import build_chain, build_model, build_objective
from hmcvi.training.checkpoint import CheckpointError, load, load_weights, save, write_atomically
from hmcvi.training.config import Config, ConfigError, load_config, to_yaml
from hmcvi.training.interrupt import InterruptGuard
from hmcvi.training.loop import Stage, Trainer
from hmcvi.training.score import score


class Run:
    """The folder of a run holds config.yaml, checkpoint.pt, the best weights of each stage (vae.pt,
    chain.pt) and its scores on each test image, summary.json and the TensorBoard events."""

    def __init__(self, folder: Path, config: Config, processes: Processes = ALONE) -> None:
        self.folder, self.config, self.processes = folder, config, processes
        self.finished: list[dict[str, Any]] = []  # summaries of stages
        self.trainer_state: dict[str, Any] | None = None  # where to go on

    @classmethod
    def create(cls, config: Config, processes: Processes = ALONE) -> Run:
        """A new folder, named after the run or the time."""
        name = processes.broadcast(config.name or time.strftime("%Y%m%d-%H%M%S"))
        folder = Path(config.runs).expanduser() / name
        if config.name is None:
            folder = Path(processes.broadcast(str(_unused(folder))))
        if (folder / "checkpoint.pt").exists():
            raise ConfigError(
                f"the run {folder} exists; continue it with --resume {folder} or choose another name"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the run folder {folder}: {error.strerror}") from None
        processes.wait()
        return cls(folder, config, processes)

    @classmethod
    def resume(cls, folder: str | Path, overrides: Sequence[str] = (), processes: Processes = ALONE) -> Run:
        """Go on where the last checkpoint of `folder` stands."""
        folder = Path(folder).expanduser()
        state = load(folder / "checkpoint.pt")
        try:
            run = cls(folder, load_config(folder / "config.yaml", overrides), processes)
            run.finished, run.trainer_state = state["finished"], state["trainer"]
        except KeyError as error:
            raise CheckpointError(
                f"{folder / 'checkpoint.pt'} is not a checkpoint of a run: no {error}"
            ) from None
        return run

    @classmethod
    def open(cls, folder: str | Path, overrides: Sequence[str] = ()) -> Run:
        """A run whose model is to be used."""
        folder = Path(folder).expanduser()
        if not (folder / "config.yaml").is_file():
            raise CheckpointError(f"{folder} is not the folder of a run: it holds no config.yaml")
        return cls(folder, load_config(folder / "config.yaml", overrides))

    def trained(self) -> tuple[VAE, Images]:
        """Encoder and decoder as the last stage left them, and the images they were trained and tested on."""
        files = (self.folder / f"{stage}.pt" for stage in ("chain", "vae"))
        weights = next((path for path in files if path.is_file()), None)
        if weights is None:
            raise CheckpointError(
                f"{self.folder} holds no weights (vae.pt or chain.pt): finish its training, "
                f"python train.py --resume {self.folder}"
            )
        images = self._load_images()
        model = build_model(self.config, images.test.shape[-1], Chain())
        load_vae(model, weights)
        return model, images

    def stages(self) -> list[Stage]:
        """The plain VAE, then the chain from its weights."""
        train = self.config.train
        if self.config.chain.kind == "none":
            return [Stage("vae", train.epochs, train.lr, 0)]
        before = 0 if train.init_from is not None else train.pretrain_epochs
        chain = Stage("chain", train.epochs, train.lr, before)
        return [Stage("vae", before, train.pretrain_lr, 0), chain] if before else [chain]

    def train(self, guard: InterruptGuard) -> dict[str, Any]:
        """Train all stages that are not finished, evaluate each on the test set, write the summary."""
        config = self.config
        torch.manual_seed(config.seed)
        _check_device(config.train.device)
        if config.train.threads is not None:
            torch.set_num_threads(config.train.threads)
        with self.processes.in_turn():  # what the first has to download the others find
            images = self._load_images()
        model = build_model(config, images.train.shape[-1], Chain()).to(config.train.device)
        # an impossible chain shall fail now, not after the first stage
        with torch.random.fork_rng(devices=[]):
            build_chain(config.chain, config.model.latent_dim, model.data_dim)
        if config.train.init_from is not None and self.trainer_state is None:
            load_vae(model, Path(config.train.init_from).expanduser())
        if self.processes.first:
            write_atomically(to_yaml(config).encode(), self.folder / "config.yaml")
        for stage in self.stages()[len(self.finished) :]:
            self._train_stage(stage, model, images, guard)
        return self._summarise()

    def _load_images(self) -> Images:
        data = self.config.data
        try:
            return load_images(data.name, data.root, data.validation, data.download)
        except DataError:
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def _train_stage(self, stage: Stage, model: VAE, images: Images, guard: InterruptGuard) -> None:
        config = self.config
        if stage.name == "chain":
            model.chain = build_chain(config.chain, config.model.latent_dim, model.data_dim).to(
                config.train.device
            )
            if config.train.compile:
                compile_trajectories(model.chain)
            set_memory(model.chain, config.chain.memory)
        objective = build_objective(config).to(config.train.device)
        trainer = Trainer(config, stage, model, objective, images, self.processes)
        if self.trainer_state is not None and self.trainer_state["stage"] == stage.name:
            trainer.load_state_dict(self.trainer_state, self.folder / "checkpoint.pt")
        else:
            self._save(trainer.state_dict())
        first_epoch = stage.epochs_before + trainer.epoch + 1
        with Board(self.folder, first_epoch) if self.processes.first else nullcontext() as board:
            trainer.fit(board, guard, self._save)
        cost = {
            "epochs": trainer.epoch,
            "best_epoch": trainer.best_epoch,
            "seconds": round(trainer.seconds, 2),
            "cpu_seconds": round(trainer.cpu_seconds, 2),
        }
        if self.processes.first:
            weights = {"model": model.state_dict(), "stage": stage.name, "cost": cost}
            save(weights, self.folder / f"{stage.name}.pt")
        unfinished = self.folder / f"{stage.name}-scores-{trainer.epoch}.pt"
        scores = score(model, images.test, config, guard, unfinished, self.processes)
        if self.processes.first:
            scores.save(self.folder / f"{stage.name}-scores.pt")
        self.finished.append({"name": stage.name, **scores.summary, **cost})

    def _save(self, trainer_state: dict[str, Any]) -> None:
        if self.processes.first:
            save({"finished": self.finished, "trainer": trainer_state}, self.folder / "checkpoint.pt")

    def _summarise(self) -> dict[str, Any]:
        summary = {"stages": self.finished, "config": asdict(self.config), "seed": self.config.seed}
        if self.processes.first:
            write_atomically(json.dumps(summary, indent=2).encode(), self.folder / "summary.json")
            last = self.finished[-1]
            metrics = {f"test/{name}": last[name] for name in ("bound", "nll") if last[name] is not None}
            with Board(self.folder, 0) as board:
                board.hyperparameters(self.config, metrics)
        return summary


def load_vae(model: VAE, run: Path) -> None:
    """Copy encoder and decoder from the weights another run stored (vae.pt, else chain.pt)."""
    path = next((p for p in (run, run / "vae.pt", run / "chain.pt") if p.is_file()), None)
    if path is None:
        raise CheckpointError(f"{run} holds no weights (vae.pt or chain.pt) to start from")
    weights = load(path).get("model")
    if not isinstance(weights, dict):
        raise CheckpointError(f"{path} holds no model")
    for name in ("encoder", "decoder"):
        own = {key.removeprefix(f"{name}."): v for key, v in weights.items() if key.startswith(f"{name}.")}
        load_weights(getattr(model, name), own, path)


def report(summary: dict[str, Any]) -> str:
    """The summary as a small table, with what refinement bought."""
    lines = ["", "test set, nats per image    bound              NLL                epochs   seconds"]
    for stage in summary["stages"]:
        nll = "–" if stage["nll"] is None else f"{stage['nll']:.2f} ± {stage['nll_se']:.2f}"
        bound = f"{stage['bound']:.2f} ± {stage['bound_se']:.2f}"
        lines.append(f"{stage['name']:<28}{bound:<19}{nll:<19}{stage['epochs']:>6}{stage['seconds']:>10.0f}")
    if len(summary["stages"]) == 2:
        before, after = summary["stages"]
        gains = [f"{after['bound'] - before['bound']:+.2f} nats of bound"]
        if after["nll"] is not None and before["nll"] is not None:
            gains.append(f"{before['nll'] - after['nll']:+.2f} nats of likelihood")
        lines.append(f"refinement brought {' and '.join(gains)}")
    if failed := [
        f"{stage['num_failed']} ({stage['name']})" for stage in summary["stages"] if stage["num_failed"]
    ]:
        lines.append(f"test images left out because their bound is not finite: {', '.join(failed)}")
    return "\n".join(lines)


def _unused(folder: Path) -> Path:
    candidates = (folder, *(folder.with_name(f"{folder.name}-{i}") for i in range(2, 1000)))
    return next(path for path in candidates if not path.exists())


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"train.device={name} cannot be used here ({reason}); use cpu") from None
