"""Names where vLLM has them: `from jaxllm.engine.arg_utils import EngineArgs`.

This folder is on the path of the package `jaxllm` itself, after its own modules: `utils/print_utils.py` is
imported as `jaxllm.utils.print_utils`, and only when it is asked for. Modules here name what is written elsewhere, or a
few lines that have no other use; nothing else in jaxllm imports them.
"""
