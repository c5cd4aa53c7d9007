"""Attention within segments of a flattened token axis, without a cache: what encoders need."""
