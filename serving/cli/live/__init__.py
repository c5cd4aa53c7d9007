"""The view of `jaxllm top`."""
