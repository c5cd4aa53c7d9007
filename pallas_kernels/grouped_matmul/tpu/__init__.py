"""Grouped products on TPUs: a Pallas kernel that reads the matrix of each group that has rows once."""
