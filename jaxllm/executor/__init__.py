"""The device side of a step: buckets, inputs, executables, sampling."""
