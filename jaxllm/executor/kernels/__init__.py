"""Which kernels an engine takes, and whether they are right on this machine."""
