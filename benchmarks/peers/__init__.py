"""vLLM in an environment of its own, and both engines as workers that run the same workloads in turn."""
