"""The process that owns the devices: `python -m jaxllm.serving.ipc.engine_process`, started by `ipc.client`."""
