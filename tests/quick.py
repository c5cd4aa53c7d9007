"""Options with which XLA compiles tests' own functions: nearly all the time of such a test goes into compiling."""

import jax

QUICK: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}
"""The arrays are too small to care how well they are computed."""

# XLA's former way to compile what it fuses takes half the time; JAX 0.11.2 has it no more.
if jax.__version_info__ < (0, 11, 1):
    QUICK["xla_cpu_use_fusion_emitters"] = False

FAST: dict[str, str | bool] = {"xla_backend_optimization_level": "3"}
"""Options for the few functions of tests that run for longer than they compile, such as on long contexts."""
