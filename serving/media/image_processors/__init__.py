"""Image processors of published checkpoints, bit-equal to those of transformers; one file per arithmetic."""
