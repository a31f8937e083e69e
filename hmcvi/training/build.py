"""From a configuration to the model it describes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn

from hmcvi.chain import Chain, Step
from hmcvi.data.own import flat_shape
from hmcvi.dynamics.forces import Subset, Surrogate, force_of
from hmcvi.flows import ApproximateForce, flow_chain, with_force
from hmcvi.kernels import (
    annealed_chain,
    flow_hmc_chain,
    hamiltonian_chain,
    hvae_chain,
    hvi_chain,
    langevin_chain,
    stochastic_flow_chain,
)
from hmcvi.models import VAE
from hmcvi.networks import MLP, ConvDecoder, GaussianDecoder, GaussianEncoder, spread_
from hmcvi.objectives import Bound
from hmcvi.training.config import ChainConfig, Config, ConfigError
from hmcvi.training.own_networks import build_networks


def build_chain(config: ChainConfig, dim: int, context_dim: int, compile: bool = False) -> Chain:
    """The chain of a configuration, for latents of size dim given data of size context_dim."""
    try:
        chain = _method(config, dim, context_dim)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    chain = type(chain)(cast(Iterable[Step], chain.steps), memory=config.memory, compile=compile)
    force = force_of(config.force)
    if isinstance(force, Subset):
        try:
            force.check(context_dim)
        except ValueError as error:
            raise ConfigError(f"chain.{error}") from None
    return chain if force is None else with_force(chain, force)


def refuse_force(chain: Chain, model: VAE) -> None:
    """Refuse a chain whose surrogate cannot be made of the model's decoder."""
    if isinstance(chain, ApproximateForce) and isinstance(chain.approximate, Surrogate):
        x = next(model.parameters()).new_zeros(1, model.data_dim)
        try:
            with torch.no_grad():
                chain.approximate(model.posterior(x))
        except ValueError as error:
            raise ConfigError(f"chain.force: {error}") from None


def _method(c: ChainConfig, dim: int, context_dim: int) -> Chain:
    hidden, first = tuple(c.hidden), c.initial_step_size
    limit = {} if c.max_energy_error is None else {"max_energy_error": c.max_energy_error}
    hmc: dict[str, Any] = {
        "partial": c.partial, "mass": c.mass, "accept": c.accept, "step_size": c.step_size,
        "initial_step_size": first, "coordinates": c.coordinates, **limit,
    }  # fmt: skip
    learned: dict[str, Any] = {"reverse": c.reverse, "reverse_sees": c.reverse_sees, "hidden": hidden}
    path: dict[str, Any] = {"num_candidates": c.num_candidates}
    match c.kind:
        case "none":
            return Chain()
        case "hmc":
            return hamiltonian_chain(dim, context_dim, c.num_hmc, c.num_leapfrog, **hmc, **learned)
        case "hvi":
            return hvi_chain(dim, context_dim, c.num_hmc, c.num_leapfrog, hidden, first, c.reverse)
        case "hvae":
            return hvae_chain(dim, c.num_leapfrog, c.tempering, first)
        case "annealed":
            return annealed_chain(dim, context_dim, c.num_hmc, c.num_leapfrog, **hmc, **path)
        case "ldvi":
            return annealed_chain(dim, context_dim, c.num_hmc, c.num_leapfrog, **hmc, **path, **learned)
        case "langevin":
            return langevin_chain(
                dim, context_dim, c.num_hmc, c.control, c.reverse_sees, c.mass, c.step_size, hidden, first,
                c.coordinates,
            )  # fmt: skip
        case "stochastic-flow":
            return stochastic_flow_chain(
                dim, context_dim, c.num_flows, c.num_hmc, c.flow, c.move, c.num_leapfrog, c.accept, c.mass,
                c.step_size, hidden, first, c.coordinates, **limit,
            )  # fmt: skip
        case "flow":
            return flow_chain(dim, context_dim, c.num_flows, c.flow, hidden)
        case "flow-hmc":
            return flow_hmc_chain(
                dim, context_dim, c.num_flows, c.num_hmc, c.num_leapfrog, c.flow, **hmc, **learned
            )  # fmt: skip
    raise ConfigError(f"chain.kind={c.kind} is a chain that Python gives to hmcvi.training.fit")


def build_model(config: Config, data_dim: int, chain: Step, shape: tuple[int, int] | None = None) -> VAE:
    """Encoder and decoder of a configuration, refined by the chain.  shape: (height, width) of the images"""
    model = config.model
    encoder, decoder = build_networks(model, data_dim, shape or flat_shape(data_dim))
    hidden = tuple(model.hidden)
    vae = VAE(data_dim, model.latent_dim, chain, model.likelihood, hidden, encoder, decoder)
    if isinstance(vae.decoder, GaussianDecoder | ConvDecoder):
        vae.decoder.min_scale = model.min_scale
    if model.slope is not None:
        sharpen_(vae, model.slope)
    return vae


def sharpen_(vae: VAE, slope: float) -> None:
    """Start with a decoder of this slope all over z, and a q0 with scales 1/slope at x = 0."""
    encoder, decoder = vae.encoder, vae.decoder
    net = decoder.net if isinstance(decoder, GaussianDecoder) else decoder
    assert isinstance(encoder, GaussianEncoder) and isinstance(net, MLP)
    spread_(net, slope)
    nn.init.constant_(encoder.output.bias[vae.latent_dim :], -2 * math.log(slope))


def build_objective(config: Config) -> Bound:
    """The bound that training climbs."""
    objective = config.objective
    return Bound(objective.alpha, objective.acceptance_gradient, gradient=objective.gradient)
