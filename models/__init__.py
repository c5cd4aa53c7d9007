"""The code that runs inside jit for one forward pass: modules, weight loading, the batch and KV-cache types."""
