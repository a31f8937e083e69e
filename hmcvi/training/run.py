"""A training run: its folder, its stages, its summary."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hmcvi.chain import Chain
from hmcvi.data import Images
from hmcvi.internal.processes import ALONE, Processes
from hmcvi.internal.seeds import seed_all
from hmcvi.internal.storage import reading, save_json
from hmcvi.models import VAE
from hmcvi.training.build import build_chain, build_model, build_objective, refuse_force
from hmcvi.training.checkpoint import (
    CheckpointError,
    LastTwo,
    State,
    load,
    load_vae,
    load_weights,
    save,
    write_atomically,
    writing,
)
from hmcvi.training.comparison import compare_stages
from hmcvi.training.config import Config, ConfigError, load_config, to_yaml
from hmcvi.training.evaluation import TEST_SEED, evaluate
from hmcvi.training.interrupt import InterruptGuard
from hmcvi.training.load_data import images_of
from hmcvi.training.loop import Trainer
from hmcvi.training.monitor import Monitor
from hmcvi.training.posterior_figure import draw_posteriors, pixels, png
from hmcvi.training.result_files import ResultFiles
from hmcvi.training.resuming import check_architecture, check_data, check_entries, goes_on, refuse_late
from hmcvi.training.scores import settings_of
from hmcvi.training.sizes import refuse_beyond_memory
from hmcvi.training.state import Cost, Stage, stages
from hmcvi.training.stored_run import open_stored, refuse_given, stored_config
from hmcvi.training.summary import report
from hmcvi.training.tensorboard import TensorBoard

WEIGHTS = ("vae.pt", "chain.pt")
FIGURES = ("bound", "nll", "refinement_gain")  # that TensorBoard shows of the test set


class Run:
    """A run and its folder, which holds config.yaml, checkpoint.pt and the one before it, the best weights of
    each stage (vae.pt, chain.pt) and its scores on each test image, summary.json and the TensorBoard events.

    `Run.create(config).train(guard)` does what `hmcvi train` does.
    """

    def __init__(self, folder: Path, config: Config, processes: Processes = ALONE) -> None:
        self.folder, self.config, self.processes = folder, config, processes
        self.checkpoints = LastTwo(folder)
        self.finished: list[dict[str, Any]] = []  # summaries of stages
        self.state: State | None = None  # of the stage to go on with
        self.files = ResultFiles()
        self.shows_progress = True

    @classmethod
    def create(cls, config: Config, processes: Processes = ALONE) -> Run:
        """A run with a folder of its own, named after the run or the time, and made by `writing`."""
        name = processes.broadcast(config.name or time.strftime("%Y%m%d-%H%M%S"))
        folder = Path(config.runs).expanduser() / name
        if config.name is None:
            folder = Path(processes.broadcast(str(_unused(folder))))
        if (folder / "checkpoint.pt").exists():
            raise ConfigError(
                f"the run {folder} exists; continue it with --resume {folder} or choose another name"
            )
        return cls(folder, config, processes)

    @classmethod
    def resume(
        cls,
        folder: str | Path,
        overrides: Sequence[str] = (),
        processes: Processes = ALONE,
        config: Config | None = None,
    ) -> Run:
        """Go on where the last checkpoint of `folder` stands; config: if given, in place of its own."""
        folder = Path(folder).expanduser()
        checkpoints = LastTwo(folder)
        checkpoint = checkpoints.load()
        run = cls(folder, config or load_config(folder / "config.yaml", overrides), processes)
        run.checkpoints = checkpoints
        if missing := {"trainer", "finished"} - checkpoint.keys():
            raise CheckpointError(f"{checkpoints.path} is not a checkpoint of a run: no {missing.pop()!r}")
        with reading(checkpoints.path):
            run.state = state = checkpoint["trainer"]
            run.finished = [
                entry for entry in checkpoint["finished"] if not goes_on(entry, run.config, state)
            ]
            check_entries(run.finished)
            if run.finished:
                report({"stages": run.finished})  # which will be printed
        return run

    @classmethod
    def open(cls, folder: str | Path, overrides: Sequence[str] = ()) -> Run:
        """A run whose model is to be used; `load_run` gives more of it."""
        folder = Path(folder).expanduser()
        return cls(folder, stored_config(folder, overrides))

    def trained(self) -> tuple[VAE, Images]:
        """The model with its chain as the last stage left it, and the images it was trained and tested on."""
        stored = open_stored(self.folder, self.config)
        return stored.model, stored.images

    def train(self, guard: InterruptGuard, begun: Callable[[], None] | None = None) -> dict[str, Any]:
        """How a run goes: data, model, the stages that are left, and what came of them.

        begun: called once data and model are there and the folder is made.
        """
        self.set_up()  # seed, device, threads
        images = self.load_images()
        model = self.build_model(images)  # encoder and decoder
        with self.writing():  # alone in the folder of the run
            self.save_config()
            if begun is not None:
                begun()
            self.update_scores(model, images, guard)  # of finished stages, after a change of evaluate.*
            for stage in self.stages_left():  # first the plain VAE, then the chain that refines its posterior
                cost = self.fit(stage, model, images, guard)  # the loop is in loop.py
                self.evaluate(stage, cost, model, images, guard)  # bound and likelihood of the test images
                self.illustrate(stage, model, images)  # posterior.png, for two latents
            return self.summarise()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Make the folder; within it, no other process trains there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the run folder {self.folder}: {error.strerror}") from None
        with writing(self.folder, self.processes):
            yield

    def set_up(self) -> None:
        """Seed torch, check the device, set the number of threads."""
        train = self.config.train
        seed_all(self.config.seed)
        _check_device(train.device)
        if train.threads is not None:
            torch.set_num_threads(train.threads)

    def load_images(self) -> Images:
        """Training, validation and test images; the first process downloads what is missing for all."""
        refuse_given(self.config, self.folder)
        with self.processes.in_turn():
            return images_of(self.config.data)

    def build_model(self, images: Images) -> VAE:
        """Encoder and decoder, new or those of `train.init_from`; the chain joins them in its own stage."""
        config = self.config
        refuse_beyond_memory(config, len(images.train), images.train.shape[-1])
        model = self.new_model(images).to(config.train.device)
        with torch.random.fork_rng(devices=[]):
            chain = self.build_chain(model)  # an impossible one shall fail now, not after the first stage
        if self.state is not None:
            with reading(self.checkpoints.path):
                check_data(images, self.state, self.folder)
                check_architecture(model, chain, self.state, self.checkpoints.path)
            refuse_late(self.folder, config, self.state, is_finished=not self.stages_left())
        if config.train.init_from is not None and self.state is None:
            load_vae(model, Path(config.train.init_from).expanduser())
        return model

    def new_model(self, images: Images) -> VAE:
        """Encoder and decoder with new weights."""
        return build_model(self.config, images.train.shape[-1], Chain(), images.shape)

    def build_chain(self, model: VAE) -> Chain:
        """The chain that refines the model, with new weights."""
        config = self.config
        chain = build_chain(config.chain, config.model.latent_dim, model.data_dim, config.train.compile)
        refuse_force(chain, model)
        return chain

    def save_config(self) -> None:
        """Every setting, so that the run can be resumed and opened."""
        if self.processes.first:
            write_atomically(to_yaml(self.config).encode(), self.folder / "config.yaml")
        self.processes.wait()

    def stages_left(self) -> list[Stage]:
        """The plain VAE, then the chain from its weights, without those that are finished."""
        return stages(self.config)[len(self.finished) :]

    def update_scores(self, model: VAE, images: Images, guard: InterruptGuard) -> None:
        """Evaluate finished stages again if the settings of the evaluation have changed since.

        So that all stages of a run are scored alike.
        """
        num_images = len(images.test[: self.config.evaluate.max_images])
        settings = settings_of(self.config, num_images, TEST_SEED)
        for place, entry in enumerate(self.finished):
            if entry.get("settings") == settings:
                continue
            cost = Cost(*(entry[name] for name in Cost._fields))
            stored = self.stored_model(entry["name"], model)
            self.finished[place] = self.score(entry["name"], cost, stored, images, guard)
            self.record()

    def stored_model(self, stage: str, like: VAE) -> VAE:
        """The model that a stage has stored."""
        path = self.folder / f"{stage}.pt"
        if not path.exists():
            raise CheckpointError(
                f"{path} is missing: without its weights the {stage} stage cannot be evaluated again; leave "
                "the settings of the evaluation as they were"
            )
        with torch.random.fork_rng(devices=[]):
            chain = self.build_chain(like) if stage == "chain" else Chain()
        model = copy.deepcopy(like)
        model.chain = chain.to(self.config.train.device)
        load_weights(model, load(path).get("model", {}), path)
        return model

    def fit(self, stage: Stage, model: VAE, images: Images, guard: InterruptGuard) -> Cost:
        """Train a stage, from its checkpoint if there is one, and store its best weights."""
        device = self.config.train.device
        if stage.name == "chain":
            model.chain = self.build_chain(model).to(device)
        objective = build_objective(self.config).to(device)
        trainer = Trainer(self.config, stage, model, objective, images, self.processes)
        if self.state is not None and self.state["stage"] == stage.name:
            trainer.load_state_dict(self.state, self.folder / "checkpoint.pt")
        else:
            self.save(trainer.state_dict())
        first_epoch = stage.epochs_before + trainer.epoch + 1
        with TensorBoard(self.folder, first_epoch) if self.processes.first else nullcontext() as tensorboard:
            if tensorboard is not None and trainer.epoch == 0:
                tensorboard.mark(first_epoch, f"{stage.name}: {stage.epochs} epochs begin")
            monitor = None if tensorboard is None else Monitor(tensorboard)
            trainer.fit(guard, self.save, monitor, self.shows_progress)
        cost = trainer.cost()
        path, weights = self.folder / f"{stage.name}.pt", copy.deepcopy(model.state_dict())
        sizes = {"data_dim": model.data_dim, "shape": tuple(images.shape), "seed": self.config.seed}
        about = {"stage": stage.name, "cost": cost._asdict(), **sizes}
        if self.processes.first:
            self.files.write(path, lambda: save({"model": weights, **about}, path))
        return cost

    def evaluate(self, stage: Stage, cost: Cost, model: VAE, images: Images, guard: InterruptGuard) -> None:
        """Score a stage on the test images, and count it as finished."""
        entry = self.score(stage.name, cost, model, images, guard)
        self.finished.append(entry)
        if self.processes.first:
            figures = {
                f"test/{stage.name}/{name}": entry[name] for name in FIGURES if entry.get(name) is not None
            }
            with TensorBoard(self.folder, 0) as tensorboard:
                tensorboard.scalars(stage.epochs_before + cost.epochs, figures)

    def score(
        self, stage: str, cost: Cost, model: VAE, images: Images, guard: InterruptGuard
    ) -> dict[str, Any]:
        """The entry of a stage in the summary; the scores of each image are stored beside it."""
        unfinished = self.folder / f"{stage}-scores-{cost.epochs}.pt"
        scores = evaluate(
            model,
            images.test,
            self.config,
            guard,
            unfinished,
            self.processes,
            shows_progress=self.shows_progress,
        )
        path = self.folder / f"{stage}-scores.pt"
        if self.processes.first:
            self.files.write(path, lambda: scores.save(path))
        return {"name": stage, **scores.summary, **cost._asdict()}

    def illustrate(self, stage: Stage, model: VAE, images: Images) -> None:
        """Draw posteriors of test images after the last stage of a model with two latents.

        posterior.png, and in TensorBoard.
        """
        if model.latent_dim != 2 or self.stages_left() or not self.processes.first:
            return
        figure = draw_posteriors(model, images.test, images.shape, self.config.data.binarize)
        if figure is not None:
            image = pixels(figure)
            path = self.folder / "posterior.png"
            self.files.write(path, lambda: write_atomically(png(image), path))
            with TensorBoard(self.folder, 0) as tensorboard:
                tensorboard.image("images/posterior", image, stage.epochs_before + stage.epochs)

    def save(self, state: State) -> None:
        """Write a checkpoint."""
        if self.processes.first:
            self.checkpoints.save({"finished": self.finished, "trainer": state, "seed": self.config.seed})

    def record(self) -> None:
        """Keep the summaries of finished stages in the checkpoint, which is else as it was."""
        if self.processes.first:
            self.checkpoints.save({**self.checkpoints.load(), "finished": self.finished})

    def summarise(self) -> dict[str, Any]:
        """Test figures and costs of all stages, in summary.json and in the hparams tab of TensorBoard."""
        is_stored = not any(path.name in WEIGHTS for path in self.files.waiting)
        if is_stored and self.processes.first:  # a stage without its weights is not finished
            self.files.write(self.checkpoints.path, self.record)
        summary = {"stages": self.finished, "config": asdict(self.config), "seed": self.config.seed}
        if len(self.finished) == 2:
            names = [entry["name"] for entry in self.finished]
            is_scored = self.processes.first and not self.files.waiting
            gains = compare_stages(self.folder, *names) if is_scored else None
            summary["between_stages"] = self.processes.broadcast(gains)
        if self.processes.first:
            path = self.folder / "summary.json"
            self.files.write(path, lambda: save_json(summary, path))
            figures = {name: self.finished[-1].get(name) for name in FIGURES}
            metrics = {f"test/{name}": figure for name, figure in figures.items() if figure is not None}
            epochs = sum(entry["epochs"] for entry in self.finished)
            with TensorBoard(self.folder, 0) as tensorboard:
                tensorboard.hyperparameters(self.config, metrics, epochs)
        return summary


def _unused(folder: Path) -> Path:
    candidates = (folder, *(folder.with_name(f"{folder.name}-{i}") for i in range(2, 1000)))
    return next(path for path in candidates if not path.exists())


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"train.device={name} cannot be used here ({reason}); use cpu") from None
