"""The engine: requests in, tokens out, a step at a time."""

# For the package `jaxllm`: vLLM's import paths of engine factories.
__path__.append(f"{__path__[0]}/../compat/vllm/modules/engine")
