"""Hamiltonian dynamics on the manifold of inputs that give exactly what was observed."""
