"""`jaxllm bench serve`: load-tests a server."""
