"""Attention over blocks of keys in plain XLA operations, which paged and latent attention share."""
