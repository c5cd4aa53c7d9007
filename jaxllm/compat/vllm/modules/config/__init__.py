"""Options that are objects. These modules are found on the path of `jaxllm.config`."""
