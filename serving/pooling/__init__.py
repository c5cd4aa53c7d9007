"""Texts to embeddings and scores: what stands between a person and a pooling engine."""
