"""The engine: requests in, tokens out, a step at a time."""

# Of the package `jaxllm`: where vLLM has its makers of engines.
__path__.append(f"{__path__[0]}/../compat/vllm/modules/engine")
