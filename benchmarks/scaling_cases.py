"""One point of a scaling curve in a process of its own: PANEL LINE SIZE SECONDS.

Says seconds of the processor per transition or training step, and MiB of memory at the peak beyond those of a
process that has done the same at the smallest size.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measuring import peak_mib, resident_mib, say, seconds, spread

PIXELS, LATENT, BATCH = 784, 20, 100
LEAPFROGS, NUM_HMC, NUM_LEAPFROG = 10, 3, 4
CONSTRAINED_CHAINS, SMALLEST = 32, 2

Work = Callable[[], object]


def chains(line: str, size: int) -> Work:
    """A transition of HMC on the decoder posterior, one image per chain."""
    import torch

    from benchmarks.kernel_targets import PROBLEMS, torch_log_prob
    from hmcvi import Density
    from hmcvi.kernels import HMC

    problem = PROBLEMS["decoder"]()
    images = torch.from_numpy(problem.per_chain)
    images = images.repeat(-(-size // len(images)), 1)[:size]
    kernel = HMC(Density(torch_log_prob("decoder", problem), images), problem.step_size, LEAPFROGS)
    state = kernel.init(torch.from_numpy(problem.start(size)))
    generator = torch.Generator().manual_seed(0)
    return lambda: kernel.step(state, generator)


def training_step(latent: int, chain: Any = None, num_samples: int = 1) -> Work:
    import torch

    from hmcvi.models import VAE

    x = torch.bernoulli(0.3 * torch.rand(BATCH, PIXELS))
    model = VAE(PIXELS, latent, chain)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (-model.bound(x, num_samples).mean()).backward()
        optimizer.step()

    return step


def refined(latent: int, num_hmc: int, num_leapfrog: int, memory: str = "store") -> Work:
    from hmcvi.flows import set_memory
    from hmcvi.kernels import hamiltonian_chain

    chain = hamiltonian_chain(latent, PIXELS, num_hmc, num_leapfrog, partial=True, initial_step_size=0.01)
    return training_step(latent, set_memory(chain, memory))


def data(line: str, size: int) -> Work:
    """A transition of constrained HMC, by the structure of the generator.

    elementwise: a quantile function; teacher-forced: Lotka–Volterra, every step constrained from the observed
    one before; autoregressive: x_t = a x_{t−1} + n_t, constrained along the simulated path.
    """
    import torch

    from experiments.models import generalised_lambda, lotka_volterra
    from hmcvi.kernels import ConstrainedHMC
    from hmcvi.models import Generator
    from hmcvi.models.inputs import Normal

    def path(v: Any) -> Any:
        a, states = 0.5 + 0.1 * torch.tanh(v["a"][..., 0]), [v["n"][..., 0]]
        for noise in v["n"].unbind(-1)[1:]:
            states.append(a * states[-1] + noise)
        return torch.stack(states, -1)

    if line == "elementwise":
        generator = generalised_lambda(size)
    elif line == "teacher-forced":
        generator = lotka_volterra(size // 2, time_step=50 / size)
    else:
        generator = Generator({"a": Normal(1), "n": Normal(size)}, path, structure="autoregressive")
    inputs = torch.zeros(generator.dim, dtype=torch.float64)
    inputs[-size:] = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if line == "teacher-forced":
        inputs[:4] = torch.tensor([0.4, 0.005, 0.05, 0.001]).double().log() + 2
    number = 1 if line == "autoregressive" else CONSTRAINED_CHAINS
    kernel = ConstrainedHMC(generator, generator.observed(inputs), 0.1, 1)
    state, random = kernel.init(inputs.expand(number, -1).clone()), torch.Generator().manual_seed(0)
    return lambda: kernel.step(state, random)


PANELS: dict[str, Callable[[str, int], Work]] = {
    "chains": chains,
    "latent size": lambda line, size: refined(size, NUM_HMC, NUM_LEAPFROG),
    "leapfrogs": lambda line, size: refined(LATENT, 1, size),
    "transitions": lambda line, size: refined(LATENT, size, NUM_LEAPFROG, line),
    "data": data,
    "samples": lambda line, size: training_step(LATENT, num_samples=size),
}


def measure(panel: str, line: str, size: int, run_seconds: float) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    PANELS[panel](line, SMALLEST)()  # everything is loaded now
    before = resident_mib()
    work = PANELS[panel](line, size)
    once = seconds(work, clock=time.process_time)
    times = [once]
    if once < run_seconds:
        number = max(1, round(run_seconds / 3 / max(once, 1e-3)))
        times = [seconds(work, number, time.process_time) for _ in range(3)]
    return {"seconds": spread(times, 7), "mib": round(peak_mib() - before, 1)}


if __name__ == "__main__":
    say(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
