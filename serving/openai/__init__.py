"""The HTTP interface: OpenAI's, with vLLM's additions."""
