"""Machinery that a reader may skip: compilation, recomputation, random numbers, files, processes."""
