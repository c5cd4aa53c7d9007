"""Load for a server, and what it makes of it: `jaxllm bench serve`."""
