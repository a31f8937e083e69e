"""Makes references.json:  python -m tests.support.make_references <folder of posteriordb>

Eight schools from the draws of posteriordb (Stan), logistic regression from a long run of NumPyro's NUTS
(`pip install -e .[bench]`), both on models written by others or written anew here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from hmcvi.sampling.diagnostics import arviz
from tests.support.posteriors import REFERENCES, logistic_data


def reference(draws: np.ndarray) -> dict[str, list[float]]:
    """Moments of draws [chains, draws, k] and their Monte Carlo errors."""
    deviations = (draws - draws.mean((0, 1))) ** 2

    def errors(values: np.ndarray) -> list[float]:
        return [float(arviz().mcse(np.ascontiguousarray(values[..., i]))) for i in range(values.shape[-1])]

    return {
        "mean": draws.mean((0, 1)).tolist(),
        "mean_error": errors(draws),
        "variance": deviations.mean((0, 1)).tolist(),
        "variance_error": errors(deviations),
    }


def eight_schools(folder: Path) -> np.ndarray:
    return np.load(folder / "eight_schools-eight_schools_noncentered.npz")["draws"].astype(np.float64)


def logistic_regression(num_chains: int = 4, num_draws: int = 20_000) -> np.ndarray:
    import jax
    import numpyro
    from numpyro.distributions import Bernoulli, Normal
    from numpyro.infer import MCMC, NUTS

    numpyro.enable_x64()
    x, labels = (value.numpy() for value in logistic_data())

    def model() -> None:
        beta = numpyro.sample("beta", Normal(0, 5).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", Bernoulli(logits=x @ beta), obs=(labels + 1) / 2)

    run = MCMC(
        NUTS(model, dense_mass=True),
        num_warmup=2000,
        num_samples=num_draws,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    run.run(jax.random.PRNGKey(0))
    return np.asarray(run.get_samples(group_by_chain=True)["beta"])


if __name__ == "__main__":
    found = {
        "eight_schools": reference(eight_schools(Path(sys.argv[1]))),
        "logistic_regression": reference(logistic_regression()),
    }
    REFERENCES.write_text(json.dumps(found, indent=1) + "\n")
