"""`jaxllm bench`: measurements of a server or of an engine."""
