"""Settings that are learned and then frozen: step size, mass, trajectory length."""
