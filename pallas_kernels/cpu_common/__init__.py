"""A toolbox for kernels on CPUs: written in Python, compiled by Numba for the processor at hand, called by XLA.

| module | what it is |
|---|---|
| `vectors`, `memory`, `tiles` | what kernels are written with: vectors, addresses, inner loops |
| `calls` | a kernel as a call of XLA's, its work shared among XLA's threads |
| `build`, `trampoline` | from a kernel to an object file, and from there to what XLA knows |
| `targets` | kernels by the name under which XLA calls them, and `begin`, which registers them with XLA |
| `outer_tile`, `movers` | products that stay in registers; copies of squares, transposed |
| `attention_words`, `attention_chunks`, `attention_softmax` | what paged and latent attention share |
| `zeros` | arrays of zeros whose memory is taken when it is written |

Only `build` needs Numba: a process that finds its object files from an earlier start never imports it.
"""
