"""Differentiable generative models: observed and latent variables as functions of random inputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hmcvi.density import Density
from hmcvi.internal.checks import one_of
from hmcvi.internal.layout import Layout
from hmcvi.models.inputs import LOGISTIC_SCALE, Inputs, Logistic, Normal
from hmcvi.models.vae import VAE

Variables = Mapping[str, Tensor]
STRUCTURES = ("dense", "elementwise", "autoregressive")


class Generator:
    """Generative model of inputs u ~ ρ, observed x = g_x(u) and latent z = g_z(u).

    inputs: {name: distribution}, laid out in one vector u [..., M] in this order; see `hmcvi.models.inputs`.
    observe(inputs) -> x [..., N] and latent(inputs) -> {name: z} take the inputs by name.
    structure: of ∂x/∂u.  "elementwise" or "autoregressive" if the last of the inputs has N entries, the i-th
        of which reaches x_i alone, or x_i and those after it.  x_i may be vectors: of shape [n, D], N = n D,
        the i-th row of the last inputs reaches the i-th D outputs alone.
    conditional(inputs, x) -> [..., N]: for autoregressive models, x_i made from its own input and the *given*
        x_1, …, x_{i−1}.  It turns the constraint into one that is elementwise, on the same manifold and with
        the same density: ∂x/∂u is a unit triangular matrix times its Jacobian.

    >>> inputs = {"z": Normal(1), "n": Normal(5)}
    >>> generator = Generator(inputs, lambda v: v["z"] + v["n"], structure="elementwise")
    >>> generator.observed(torch.zeros(3, 6)).shape
    torch.Size([3, 5])
    """

    def __init__(
        self,
        inputs: Mapping[str, Inputs],
        observe: Callable[[Variables], Tensor],
        latent: Callable[[Variables], Variables] | None = None,
        structure: str = "dense",
        conditional: Callable[[Variables, Tensor], Tensor] | None = None,
    ) -> None:
        one_of("structure", structure, STRUCTURES)
        if conditional is not None and structure != "autoregressive":
            raise ValueError('conditional is for structure="autoregressive"')
        self.inputs, self._conditional = dict(inputs), conditional
        self._observe, self._latent = observe, latent
        self.layout = Layout({name: distribution.shape for name, distribution in self.inputs.items()})
        self.density = Density(self._log_prob, shapes=self.layout.shapes)
        # given the observed past, each output depends on no other of the last inputs than its own
        self.structure = structure if conditional is None else "elementwise"
        self.num_observed = self._count_observed()
        self.block = self._size_of_blocks()
        if conditional is not None:
            self._check_conditional()

    def _count_observed(self) -> int:
        """N, by one evaluation."""
        observed = self.observed(torch.zeros(self.dim, dtype=torch.float64))
        if not isinstance(observed, Tensor) or observed.ndim != 1:
            shape = list(observed.shape) if isinstance(observed, Tensor) else type(observed).__name__
            raise ValueError(
                f"observe must return a vector of outputs [..., N], got {shape} for one set of inputs"
            )
        if observed.dtype != torch.float64:
            raise ValueError(f"of float64 inputs observe must make float64 outputs, got {observed.dtype}")
        size = len(observed)
        if size > self.dim:
            raise ValueError(
                f"{size} outputs cannot be fixed by {self.dim} inputs: observe fewer, or add noise inputs"
            )
        return size

    def _size_of_blocks(self) -> int:
        """D, the number of outputs that have inputs of their own in common; 1 without structure."""
        size, (name, last) = self.num_observed, list(self.inputs.items())[-1]
        if self.structure == "dense" or last.shape == (size,):
            return 1
        if self.structure == "elementwise" and len(last.shape) == 2 and math.prod(last.shape) == size:
            return last.shape[1]
        blocks = " or (n, D) with n D outputs in blocks of D" if self.structure == "elementwise" else ""
        raise ValueError(
            f"in a generator with structure the last inputs belong to the {size} outputs, one each: "
            f"{name!r} must have shape ({size},){blocks}, not {last.shape}"
        )

    def _check_conditional(self) -> None:
        """Refuse a conditional that, given the outputs of some inputs as the past, makes others of them."""
        inputs = self.sample(generator=torch.Generator().manual_seed(0))
        observed = self.observed(inputs)
        error = (self.residual(inputs, observed).abs() / (1 + observed.abs())).max()
        if error > 1e-6:
            raise ValueError(
                f"conditional must give back what observe makes of the same inputs; off by {error:.1g}"
            )

    @property
    def is_conditional(self) -> bool:
        """Whether the residual is of outputs made from the observed past."""
        return self._conditional is not None

    @property
    def dim(self) -> int:
        """M, the number of inputs."""
        return self.layout.dim

    def sample(self, *shape: int, generator: torch.Generator | None = None) -> Tensor:
        """u ~ ρ  [*shape, M], float64"""
        return self.quantile(torch.rand(*shape, self.dim, dtype=torch.float64, generator=generator))

    def quantile(self, uniform: Tensor) -> Tensor:
        """u ~ ρ, one input from each of `uniform` in [0, 1).  [..., M] -> [..., M]"""
        parts = self.layout.unflatten(uniform.clamp(min=torch.finfo(uniform.dtype).tiny))
        return self.layout.flatten({name: self.inputs[name].quantile(p) for name, p in parts.items()})

    def observed(self, inputs: Tensor) -> Tensor:
        """x = g_x(u)  [..., M] -> [..., N]"""
        return self._observe(self.layout.unflatten(inputs))

    def latent(self, inputs: Tensor) -> Variables:
        """z = g_z(u), by name; the inputs themselves if the model names no latent variables."""
        variables = self.layout.unflatten(inputs)
        return variables if self._latent is None else self._latent(variables)

    def residual(self, inputs: Tensor, observed: Tensor) -> Tensor:
        """c(u), zero where g_x(u) = y.  [..., M], [..., N] -> [..., N]"""
        if self._conditional is None:
            return self.observed(inputs) - observed
        return self._conditional(self.layout.unflatten(inputs), observed) - observed

    def then(self, function: Callable[[Tensor], Tensor]) -> Generator:
        """The generator of f(x), summaries of the observed variables for example."""
        return Generator(self.inputs, lambda v: function(self._observe(v)), self._latent)

    def noisy(self, scale: float) -> Generator:
        """The generator of x + ε n with n ~ N(0, I): its Jacobian always has full rank.  (4.50)"""
        if not scale > 0:
            raise ValueError(f"the scale of the noise must be positive, got {scale}")
        if "noise" in self.inputs:
            raise ValueError('there are inputs called "noise" already')
        return Generator(
            {**self.inputs, "noise": Normal(self.num_observed)},
            lambda v: self._observe(v) + scale * v["noise"],
            self._latent,
            "elementwise",
        )

    def observing(self, kept: Tensor) -> Generator:
        """The generator of some of the outputs, `kept` a mask or indices of them.

        Of an elementwise generator the inputs of the others are left out; one in blocks becomes dense.
        """
        index = self._index(kept)
        if self._conditional is not None or self.structure == "autoregressive":
            raise ValueError("of an autoregressive generator all outputs must be observed")
        if self.structure == "dense" or self.block > 1:
            return self.then(lambda x: x[..., index])
        name, last = list(self.inputs.items())[-1]

        def whole(inputs: Variables) -> Variables:
            local = inputs[name]
            return {
                **inputs,
                name: local.new_zeros(*local.shape[:-1], self.num_observed).index_copy(-1, index, local),
            }

        latent = self._latent
        return Generator(
            {**self.inputs, name: type(last)(len(index))},
            lambda v: self._observe(whole(v))[..., index],
            None if latent is None else lambda v: latent(whole(v)),
            "elementwise",
        )

    def _index(self, kept: Tensor) -> Tensor:
        """Indices of the outputs that a mask, or indices, choose."""
        size, everything = self.num_observed, torch.arange(self.num_observed)
        if kept.dtype == torch.bool and kept.shape != (size,):
            raise ValueError(
                f"the mask must have one entry for each of {size} outputs, got {list(kept.shape)}"
            )
        if kept.dtype != torch.bool and not ((kept >= 0) & (kept < size)).all():
            raise ValueError(f"indices of outputs lie between 0 and {size - 1}, got {kept.tolist()}")
        index = everything[kept]
        if len(index) == 0 or len(index.unique()) < len(index):
            raise ValueError("observe at least one output, and each once")
        return index

    @classmethod
    def from_vae(cls, vae: VAE, temperature: float = 0.5) -> Generator:
        """The generator of a decoder, with inputs z ~ N(0, I) "z" and one for each pixel, "n".

        Gaussian: x = μ(z) + σ(z) n.  Bernoulli: the relaxation x = (logit(z) + l)/τ, l logistic; the sign of
        x is the binary pixel.
        """
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        decoder = copy.deepcopy(vae.decoder).double().requires_grad_(False)
        inputs: dict[str, Inputs] = {"z": Normal(vae.latent_dim)}
        if vae.likelihood == "gaussian":

            def observe(v: Variables) -> Tensor:
                loc, scale = decoder(v["z"])
                return loc + scale * v["n"]

            inputs["n"] = Normal(vae.data_dim)
        else:

            def observe(v: Variables) -> Tensor:
                return (decoder(v["z"]) + v["n"] / LOGISTIC_SCALE) / temperature

            inputs["n"] = Logistic(vae.data_dim)
        return cls(inputs, observe, lambda v: {"z": v["z"]}, "elementwise")

    def _log_prob(self, inputs: Variables) -> Tensor:
        total: Tensor | float = 0.0
        for name, distribution in self.inputs.items():
            log_prob = distribution.log_prob(inputs[name])
            event = tuple(range(-len(distribution.shape), 0))
            total = total + (log_prob.sum(event) if event else log_prob)
        assert isinstance(total, Tensor)
        return total
