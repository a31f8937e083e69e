"""NumPyro's guides in a process of their own: MODEL BUDGET RATE.

Answers the line [GUIDE, SEED] by training that guide from scratch for BUDGET CPU seconds, from which
compilation, in "CPU seconds before", is exempt: log-weights of single draws; if these are finite, draws, and
log p(x, z) of some; or by the error that stopped it.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoBNAFNormal, AutoDAIS
from numpyro.infer.util import log_density
from numpyro.optim import Adam

from benchmarks.guide_peer_models import MODELS
from benchmarks.measuring import Record
from benchmarks.workers import serve

GUIDES: dict[str, Any] = {
    "AutoDAIS": AutoDAIS,
    "AutoDAIS, K=8, cholesky": partial(AutoDAIS, K=8, base_dist="cholesky"),
    "AutoBNAFNormal": AutoBNAFNormal,
}
STEPS_AT_ONCE, NUM_DRAWS, NUM_CHECKED = 50, 1000, 5


def fit(model: Any, guide: Any, seed: int, budget: float, rate: float) -> Record:
    woke, elbo = time.process_time(), Trace_ELBO()
    svi = SVI(model, guide, Adam(rate), elbo)
    state = svi.init(jax.random.PRNGKey(seed))

    def several(state: Any) -> Any:
        return jax.lax.scan(lambda state, _: svi.update(state), state, length=STEPS_AT_ONCE)[0]

    steps = jax.jit(several).lower(state).compile()
    began, num_steps = time.process_time(), 0
    while (used := time.process_time() - began) < budget:
        state = jax.block_until_ready(steps(state))
        num_steps += STEPS_AT_ONCE
    params = svi.get_params(state)
    first, second = jax.random.split(jax.random.PRNGKey(seed + 1))
    keys = jax.random.split(first, NUM_DRAWS)
    losses = jax.jit(jax.vmap(lambda key: elbo.loss(key, params, model, guide)))(keys)
    answer = {
        "steps": num_steps,
        "CPU seconds": used,
        "CPU seconds before": began - woke,
        "log weights": _listed(-losses),
    }
    if not np.isfinite(losses).all():
        return answer
    draws = guide.sample_posterior(second, params, sample_shape=(NUM_DRAWS,))
    checked = {site: value[:NUM_CHECKED] for site, value in draws.items()}
    log_joint = jax.vmap(lambda values: log_density(model, (), {}, values)[0])(checked)
    return answer | {
        "draws": {site: _listed(value) for site, value in draws.items()},
        "log joint": _listed(log_joint),
    }


def _listed(array: Any) -> list[Any]:
    listed: list[Any] = np.asarray(array, dtype=float).tolist()
    return listed


def main(name: str, budget: float, rate: float) -> None:
    def answer(line: str) -> Record:
        guide, seed = json.loads(line)
        try:
            return fit(MODELS[name], GUIDES[guide](MODELS[name]), seed, budget, rate)
        except ValueError as error:  # NaN in its first draw, say
            return {"error": str(error)}

    serve({"versions": {package: version(package) for package in ("numpyro", "jax")}}, answer)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
