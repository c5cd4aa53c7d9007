"""The requests that benchmarks send."""
