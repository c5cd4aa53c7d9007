"""Kernels for CPUs: written in Python, compiled by Numba for the processor at hand, called by XLA.

| module | what it is |
|---|---|
| `vectors`, `memory`, `tiles` | what kernels are written with: vectors, addresses, the inner loops of products |
| `calls` | a kernel as a call of XLA's, its work shared among XLA's threads |
| `build`, `load` | from a kernel to an object file, and from there into the process |
| `targets` | the kernels by name, and `provide`, which has XLA know one |
| `matmul` | products with weights as checkpoints have them |

Only `build` needs Numba: a process that finds its object files from an earlier start never imports it.
"""
