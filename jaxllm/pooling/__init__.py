"""The engine of models that make vectors or scores of whole texts instead of continuing them."""
