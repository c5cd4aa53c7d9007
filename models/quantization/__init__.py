"""Matrices of few bits: formats of checkpoints that have them, and how others become such while they are read."""
