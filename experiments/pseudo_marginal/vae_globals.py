"""Global parameters of a decoder from its images, the encoder being the proposal for the latents of each.

y_m ~ Bernoulli(σ(e^a · decoder(z_m) + b)), z_m ~ N(0, e^{2s} I): contrast a, brightness b and log-spread s,
all N(0, ½²) a priori.  Thirty images are made with values that the encoder has never seen; then PM-MH, four
auxiliary pseudo-marginal methods and pseudo-marginal HMC infer them.  --run names the folder of a trained
Bernoulli VAE; without it a small one is trained on the digits first.  Written are result.json (posterior
means, R-hat, effective draws per estimate, acceptance) and figure.png.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from torch import Tensor

from experiments.digits import trained_on_digits
from experiments.pseudo_marginal.figure import draw_vae_globals
from experiments.pseudo_marginal.runs import longest_run, rejections
from experiments.report import acceptance_rates, configure_with_run, describe, write
from hmcvi.kernels import (
    Estimator,
    Kernel,
    PseudoMarginalHMC,
    apm_mi_mh,
    apm_mi_ss,
    apm_ss_mh,
    apm_ss_ss,
    pm_mh,
)
from hmcvi.models import VAE
from hmcvi.sampling import Draws, sample
from hmcvi.training import ConfigError, Run

TRUTH = {"a": -0.3, "b": 0.3, "s": 0.2}
PRIOR_SCALE = 0.5
WIDENING = 2.0  # of the encoder: the posteriors of these images are wider, and weights must stay bounded
NUM_IMAGES, NUM_IMPORTANCE, NUM_CHAINS = 30, 8, 8
SIZES = {"num_warmup": 300, "num_draws": 1_000}
QUICK_SIZES = {"num_warmup": 4, "num_draws": 8}


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_run(parser, "Bernoulli")


class Globals:
    """The model of all images, and estimates of the posterior density of x = (a, b, s)."""

    def __init__(self, vae: VAE, seed: int) -> None:
        if vae.likelihood != "bernoulli":
            raise ConfigError("the model has Bernoulli pixels: name a run with model.likelihood=bernoulli")
        self.vae = vae.double().requires_grad_(False)
        generator = torch.Generator().manual_seed(seed)
        a, b, s = TRUTH.values()
        z = math.exp(s) * torch.randn(NUM_IMAGES, vae.latent_dim, dtype=torch.float64, generator=generator)
        probability = (math.exp(a) * self.vae.decoder(z) + b).sigmoid()
        self.images = torch.bernoulli(probability, generator=generator)  # [M, D]
        loc, scale = self.vae.encoder(self.images)  # [M, d]
        self.loc, self.scale = loc, WIDENING * scale

    @property
    def estimator(self) -> Estimator:
        """log p(x) + Σ_m log p(y_m | x), each term by `NUM_IMPORTANCE` samples of the encoder."""
        size = NUM_IMPORTANCE * self.loc.numel()
        return Estimator(self.log_estimate, size, shapes=dict.fromkeys(TRUTH, ()))

    def log_estimate(self, v: dict[str, Tensor], u: Tensor) -> Tensor:
        """[...], [..., N M d] -> [...]"""
        normals = u.unflatten(-1, (NUM_IMPORTANCE, *self.loc.shape))
        a, b, s = (v[name][..., None, None] for name in TRUTH)
        z = self.loc + self.scale * normals
        logits = a[..., None].exp() * self.vae.decoder(z) + b[..., None]
        log_likelihood = (self.images * logits - torch.nn.functional.softplus(logits)).sum(-1)
        # log N(z; 0, e^{2s}) − log q(z), the constants of both cancelling
        log_prior = -0.5 * (z * (-s[..., None]).exp()).square().sum(-1) - s * z.shape[-1]
        log_proposal = -0.5 * normals.square().sum(-1) - self.scale.log().sum(-1)
        log_weight = log_likelihood + log_prior - log_proposal  # [..., N, M]
        log_mean = log_weight.logsumexp(-2) - math.log(NUM_IMPORTANCE)
        return log_mean.sum(-1) - 0.5 * sum((value / PRIOR_SCALE).square() for value in v.values())


def kernels(estimator: Estimator) -> dict[str, Kernel]:
    return {
        "PM-MH": pm_mh(estimator, 0.1),
        "APM-MI+MH": apm_mi_mh(estimator, 0.1),
        "APM-SS+MH": apm_ss_mh(estimator, 0.1),
        "APM-MI+SS": apm_mi_ss(estimator, 0.5),
        "APM-SS+SS": apm_ss_ss(estimator, 0.5),
        "PM-HMC": PseudoMarginalHMC(estimator, 0.1, num_steps=5),
    }


def run(args: argparse.Namespace) -> int:
    sizes = QUICK_SIZES if args.quick else SIZES
    folder = args.run or trained_on_digits("vae.yaml", args.out, args.seed, args.quick)
    vae, _ = Run.open(folder, [] if args.data is None else [f"data.root={args.data}"]).trained()
    model = Globals(vae, args.seed)
    initial = PRIOR_SCALE * torch.randn(
        NUM_CHAINS, len(TRUTH), dtype=torch.float64, generator=torch.Generator().manual_seed(args.seed)
    )
    all_draws = {
        name: sample(kernel, initial, sizes["num_draws"], sizes["num_warmup"], seed=args.seed, check=False)
        for name, kernel in kernels(model.estimator).items()
    }
    reports = {name: report(draws) for name, draws in all_draws.items()}
    settings = {
        "seed": args.seed,
        "num_images": NUM_IMAGES,
        "num_importance": NUM_IMPORTANCE,
        "num_chains": NUM_CHAINS,
        **sizes,
    }
    path = write(args.out, {"settings": settings, "truth": TRUTH, "methods": reports})
    draw_vae_globals(all_draws, reports, TRUTH, path)
    return 0


def report(draws: Draws) -> dict[str, Any]:
    """Describe every parameter; an estimate with its gradient counts as three."""
    stats = draws.stats
    zero = torch.zeros(())
    cost = float((stats.get("num_evaluations", zero) + 3 * stats.get("num_gradients", zero)).sum())
    parameters = {name: describe(values) for name, values in draws.variables.items()}
    for found in parameters.values():
        found["ess_per_1000_estimates"] = 1000 * found.pop("ess") / cost
    rates = {name: float(value.mean()) for name, value in acceptance_rates(stats).items()}
    longest = longest_run(rejections(stats))
    return {"parameters": parameters, "longest_run_of_rejections": longest, **rates}
