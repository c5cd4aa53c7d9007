"""Checks of a machine and its accelerators, each in a process of its own."""
