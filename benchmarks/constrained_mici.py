"""mici's constrained HMC in its fastest honest form: own compiled Jacobians, quasi-Newton projections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mici
import numpy as np
from mici.states import cache_in_state

jax.config.update("jax_enable_x64", True)
LOGISTIC = np.pi / np.sqrt(3)
softplus = jax.nn.softplus

# (position, number of transitions) -> the last position, all of them [draws, M], the mean acceptance rate
Draw = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray, float]]


def lotka_volterra(inputs: Any) -> Any:
    z = jnp.exp(inputs[:4] - 2)

    def step(state: Any, noise: Any) -> Any:
        prey, predators = state
        both = prey * predators
        prey, predators = (
            prey + z[0] * prey - z[1] * both + noise[0],
            predators + z[3] * both - z[2] * predators + noise[1],
        )
        return (prey, predators), jnp.stack([prey, predators])

    start = (jnp.float64(100.0), jnp.float64(100.0))
    return jax.lax.scan(step, start, inputs[4:].reshape(-1, 2))[1].reshape(-1)


def generalised_lambda(inputs: Any) -> Any:
    z1, z2, z3, z4 = inputs[0], softplus(LOGISTIC * inputs[1]), inputs[2], inputs[3]
    logit = LOGISTIC * inputs[4:]
    return z1 + (jnp.expm1(-z3 * softplus(-logit)) / z3 - jnp.expm1(-z4 * softplus(logit)) / z4) / z2


def normal_energy(inputs: Any) -> Any:
    return 0.5 * jnp.sum(inputs**2)


def lambda_energy(inputs: Any) -> Any:
    logistic = LOGISTIC * jnp.concatenate([inputs[1:2], inputs[4:]])
    normal = inputs[jnp.array([0, 2, 3])]
    return 0.5 * jnp.sum(normal**2) + jnp.sum(logistic + 2 * softplus(-logistic))


MODELS = {
    "lotka_volterra": (lotka_volterra, normal_energy),
    "generalised_lambda": (generalised_lambda, lambda_energy),
}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    program = jax.jit(function)
    return lambda *args: jax.tree_util.tree_map(np.asarray, program(*args))


def dense_system(model: Callable[[Any], Any], energy: Callable[[Any], Any], observed: np.ndarray) -> Any:
    def constraint(inputs: Any) -> Any:
        return model(inputs) - observed

    jacobian = jax.jacrev(constraint)
    both = compiled(lambda u: (jacobian(u), constraint(u)))
    weighted = compiled(lambda u, m: jax.grad(lambda v: jnp.sum(m * jacobian(v)))(u))

    def product(u: np.ndarray) -> Any:
        return (lambda m: weighted(u, m)), *both(u)

    return mici.systems.DenseConstrainedEuclideanMetricSystem(
        neg_log_dens=compiled(energy),
        grad_neg_log_dens=compiled(jax.grad(energy)),
        constr=compiled(constraint),
        jacob_constr=both,
        mhp_constr=product,
        dens_wrt_hausdorff=False,
    )


class Wide:
    """[C, diag(d)]"""

    def __init__(self, columns: np.ndarray, diagonal: np.ndarray) -> None:
        self.columns, self.diagonal = columns, diagonal
        self.T = Tall(columns, diagonal)

    def __matmul__(self, vector: np.ndarray) -> np.ndarray:
        return self.columns @ vector[:4] + self.diagonal * vector[4:]


class Tall:
    """Its transpose."""

    def __init__(self, columns: np.ndarray, diagonal: np.ndarray) -> None:
        self.columns, self.diagonal = columns, diagonal

    def __matmul__(self, vector: np.ndarray) -> np.ndarray:
        return np.concatenate([self.columns.T @ vector, self.diagonal * vector])


class Gram:
    """scale · (A Bᵀ + diag(e)), solved by Woodbury's formula."""

    def __init__(self, scale: float, a: np.ndarray, b: np.ndarray, e: np.ndarray) -> None:
        self.scale, self.b, self.e, self.left = scale, b, e, a / e[:, None]
        self.small = np.eye(4) + b.T @ self.left

    @property
    def inv(self) -> Gram:
        self.small_inverse = np.linalg.inv(self.small)
        return self

    def __matmul__(self, vector: np.ndarray) -> np.ndarray:  # of the inverse, which alone is asked for
        scaled = vector / self.e
        return (scaled - self.left @ (self.small_inverse @ (self.b.T @ scaled))) / self.scale

    @property
    def log_abs_det(self) -> float:
        diagonal = len(self.e) * np.log(abs(self.scale)) + np.log(np.abs(self.e)).sum()
        return float(diagonal + np.linalg.slogdet(self.small)[1])


class StructuredSystem(mici.systems.ConstrainedEuclideanMetricSystem):
    """What an expert would write for outputs that have an input of their own each."""

    def __init__(
        self, model: Callable[[Any], Any], energy: Callable[[Any], Any], observed: np.ndarray
    ) -> None:
        def parts(inputs: Any) -> Any:
            def split(u1: Any, u2: Any) -> Any:
                return model(jnp.concatenate([u1, u2]))

            u1, u2 = inputs[:4], inputs[4:]
            diagonal = jax.jvp(lambda v: split(u1, v), (u2,), (jnp.ones_like(u2),))[1]
            return jax.jacfwd(split)(u1, u2), diagonal

        def log_volume(inputs: Any) -> Any:
            columns, diagonal = parts(inputs)
            scaled = columns / diagonal[:, None]
            small = jnp.eye(4) + scaled.T @ scaled
            return jnp.sum(jnp.log(jnp.abs(diagonal))) + 0.5 * jnp.linalg.slogdet(small)[1]

        both = compiled(lambda u: (*parts(u), model(u) - observed))
        self._gradient = compiled(jax.grad(log_volume))

        def jacobian(inputs: np.ndarray) -> Any:
            columns, diagonal, residual = both(inputs)
            return Wide(columns, diagonal), residual

        super().__init__(
            neg_log_dens=compiled(energy),
            grad_neg_log_dens=compiled(jax.grad(energy)),
            constr=compiled(lambda u: model(u) - observed),
            jacob_constr=jacobian,
            dens_wrt_hausdorff=False,
        )

    def jacob_constr_inner_product(self, left: Wide, metric: Any, right: Wide | None = None) -> Gram:
        right = left if right is None else right
        scale = getattr(metric, "scalar", 1.0)
        return Gram(scale, left.columns, right.columns, left.diagonal * right.diagonal)

    @cache_in_state("pos")
    def grad_log_det_sqrt_gram(self, state: Any) -> np.ndarray:
        return self._gradient(state.pos)


def sampler(model: str, observed: np.ndarray, settings: dict[str, Any], structured: bool, seed: int) -> Draw:
    system = (StructuredSystem if structured else dense_system)(*MODELS[model], observed)
    integrator = mici.integrators.ConstrainedLeapfrogIntegrator(
        system,
        step_size=settings["step_size"],
        n_inner_step=settings["num_geodesic"],
        projection_solver=mici.solvers.solve_projection_onto_manifold_quasi_newton,
    )
    least, most = settings["num_steps"]
    chain = mici.samplers.RandomMetropolisHMC(
        system,
        integrator,
        n_step_range=(least, most + 1),  # the upper end is not drawn
        rng=np.random.default_rng(seed),
    )

    def draw(position: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, float]:
        result = chain.sample_chains(
            n_warm_up_iter=0,
            n_main_iter=count,
            init_states=[position],
            adapters=[],
            trace_funcs=[lambda state: {"u": state.pos.copy()}],
            display_progress=False,
            n_worker=1,
        )
        path = np.asarray(result.traces["u"][0])
        return path[-1], path, float(np.mean(result.statistics["accept_stat"][0]))

    return draw
