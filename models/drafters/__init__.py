"""Parts that guess at the tokens after the one that a model computes, from its hidden states."""
