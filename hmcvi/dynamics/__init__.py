"""Hamiltonian mechanics, written once: metrics, energies and integrators."""
