"""Warm-up that cannot work."""

from __future__ import annotations

LEAST_STEP = 1e-5  # in units of the scales that the mass makes one


class WarmupError(RuntimeError):
    """Warm-up found no step size that moves the chains."""


def refuse_collapse(step: float | None, still: int, chains: int) -> None:
    """Stop where going on would only take longer and longer trajectories of ever smaller steps.

    step: its size, once the mass is known.  still: of the chains, those that did not move for a window.
    """
    if step is not None and step < LEAST_STEP:
        what = f"the step size fell to {step:.1g} of the scale of the draws"
    elif 2 * still > chains:
        what = f"{still} of {chains} chains accepted no proposal for a whole window"
    else:
        return
    raise WarmupError(
        f"warm-up collapsed: {what}.  Check that log_prob is smooth, has the same value whenever it is "
        "called and is not lost in rounding (use double precision); start chains nearer to where they "
        "belong (init=...), or reparameterise"
    )
