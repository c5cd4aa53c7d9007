"""Where vLLM has the choice of tokens."""
