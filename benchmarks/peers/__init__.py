"""vLLM in an environment of its own, and both engines as workers that alternate on the same workloads."""
