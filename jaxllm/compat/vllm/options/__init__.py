"""vLLM's options that jaxllm does not have under that name: without effect, rejected, or other options of jaxllm's."""

from jaxllm.compat.vllm.options.engine import NOOP_OPTIONS, OF_SCRIPTS
from jaxllm.compat.vllm.options.noop import NoopOption, drop_noop_options, lists, off, only, switches, values
from jaxllm.compat.vllm.options.server import NOOP_SERVER_OPTIONS
from jaxllm.compat.vllm.options.translated import TRANSLATED, add_translated

__all__ = [
    "NOOP_OPTIONS",
    "NOOP_SERVER_OPTIONS",
    "OF_SCRIPTS",
    "TRANSLATED",
    "NoopOption",
    "add_translated",
    "drop_noop_options",
    "lists",
    "off",
    "only",
    "switches",
    "values",
]
