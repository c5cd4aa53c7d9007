"""What benchmarks ask for."""
