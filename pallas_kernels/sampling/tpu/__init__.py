"""A kernel for TPUs that chooses the tokens of whole rows of logits."""
