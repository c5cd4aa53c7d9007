"""Load tests of servers and measurements of engines: what `jaxllm bench` runs."""
