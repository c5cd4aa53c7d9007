"""The process that owns the devices: `python -m jaxllm.serving.engine_process`, started by `jaxllm.serving.clients`."""
