"""The `jaxllm` command: one module per sub-command."""
