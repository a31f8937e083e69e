"""Posteriors whose densities are only estimated: pseudo-marginal chains and their auxiliary variants."""
