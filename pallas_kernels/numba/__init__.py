"""Kernels for CPUs: written in Python, compiled by Numba for the processor at hand, called by XLA.

| module | what it is |
|---|---|
| `vectors`, `memory`, `tiles` | what kernels are written with: vectors, addresses, inner loops |
| `calls` | a kernel as a call of XLA's, its work shared among XLA's threads |
| `build`, `gateway` | from a kernel to an object file, and from there to what XLA knows |
| `panels`, `rows`, `matmul`, `products` | where weights lie, what is done to rows first, the kernel, its call |
| `targets` | the kernels by name, and `begin`, which has XLA know them |

Only `build` needs Numba: a process that finds its object files from an earlier start never imports it.
"""
