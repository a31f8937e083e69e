"""Markov kernels: Hamiltonian, Metropolis, slice and discontinuous, and compositions of them."""
