"""The training steps of one library: LIBRARY BATCH SECONDS STEP…

Warms every step up, says how long its first call took, and answers every line, the name of a step, by a run
of it for about SECONDS: seconds per step, and per multiply-add of a matrix product before and after it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

from benchmarks.measuring import Record, matmul_clock, seconds, timed
from benchmarks.workers import serve

PIXELS, LATENT, HIDDEN, NUM_HMC, NUM_LEAPFROG, SAMPLES = 784, 20, 200, 3, 4, 5
CHEAP_FORCES = {"bf16": "bf16", "subset": "subset(392)", "surrogate": "surrogate(64)"}
STEPS = {
    "hmcvi": (
        *("vae", "iwae_5", "hvae_12", "3x4", "3x4_compiled"),
        *(f"3x4_{force}_compiled" for force in CHEAP_FORCES),
    ),
    "pythae": ("vae", "iwae_5", "hvae_4", "hvae_12", "hvae_12_differentiated"),
}
Step = Callable[[], object]


def training_step(model: Any, loss: Callable[[], Any]) -> Step:
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


def hmcvi(name: str, x: Any) -> Step:
    from hmcvi.flows import compile_trajectories, with_force
    from hmcvi.kernels import hamiltonian_chain, hvae_chain
    from hmcvi.models import VAE

    chain, num_samples = None, 1
    if name == "iwae_5":
        num_samples = SAMPLES
    elif name == "hvae_12":
        chain = hvae_chain(LATENT, NUM_HMC * NUM_LEAPFROG, initial_step_size=0.01)
    elif name.startswith("3x4"):
        chain = hamiltonian_chain(LATENT, PIXELS, NUM_HMC, NUM_LEAPFROG)
        for force in (force for kind, force in CHEAP_FORCES.items() if kind in name):
            chain = with_force(chain, force)
    if chain is not None and name.endswith("compiled"):
        compile_trajectories(chain)
    model = VAE(PIXELS, LATENT, chain)
    return training_step(model, lambda: -model.bound(x, num_samples).mean())


def pythae(name: str, x: Any) -> Step:
    """Its models with the same networks, called without its trainer."""
    from pythae.models import HVAE, IWAE, VAE, HVAEConfig, IWAEConfig, VAEConfig

    from benchmarks.train_step_pythae import Decoder, DifferentiatedHVAE, Encoder

    sizes: dict[str, Any] = {"input_dim": (PIXELS,), "latent_dim": LATENT, "reconstruction_loss": "bce"}
    kind, *rest = name.split("_")
    if kind == "hvae":
        config = HVAEConfig(n_lf=int(rest[0]), eps_lf=0.01, learn_eps_lf=True, **sizes)
        family = DifferentiatedHVAE if rest[1:] else HVAE
        model = family(config, encoder=Encoder(), decoder=Decoder(logits=True))
    elif kind == "iwae":
        config = IWAEConfig(number_samples=int(rest[0]), **sizes)
        model = IWAE(config, encoder=Encoder(), decoder=Decoder())
    else:
        model = VAE(VAEConfig(**sizes), encoder=Encoder(), decoder=Decoder())
    model.train()
    return training_step(model, lambda: model({"data": x}).loss)


LIBRARIES = {"hmcvi": hmcvi, "pythae": pythae}


def main(library: str, batch: int, run_seconds: float, names: list[str]) -> None:
    import torch

    warnings.simplefilter("ignore")  # a peer's, about itself
    torch.manual_seed(0)
    x = torch.bernoulli(0.3 * torch.rand(batch, PIXELS))
    steps = {name: LIBRARIES[library](name, x) for name in names}
    first = {name: seconds(step) for name, step in steps.items()}
    numbers = {name: max(1, round(run_seconds / seconds(step, 3))) for name, step in steps.items()}
    multiply_add_seconds = matmul_clock(run_seconds / 2)

    def answer(name: str) -> Record:
        steps[name]()
        before = multiply_add_seconds()
        took, times = timed(partial(seconds, steps[name], numbers[name]))
        speed = (before + multiply_add_seconds()) / 2
        return {"seconds": took, "multiply_add_seconds": speed, "others": times["others"]}

    versions = {package: version(package) for package in ("torch", library)}
    serve(
        {"first_step_s": {name: round(took, 2) for name, took in first.items()}, "versions": versions}, answer
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
