"""Makers of engines. These modules are found on the path of `jaxllm.engine`."""
