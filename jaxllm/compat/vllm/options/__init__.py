"""vLLM's options that jaxllm does not have under that name: without effect, refused, or other options of jaxllm's."""

from jaxllm.compat.vllm.options.engine import MEANINGLESS, OF_SCRIPTS
from jaxllm.compat.vllm.options.meaningless import Meaningless, drop_meaningless, lists, off, only, switches, values
from jaxllm.compat.vllm.options.translated import TRANSLATED, add_translated

__all__ = [
    "MEANINGLESS",
    "OF_SCRIPTS",
    "TRANSLATED",
    "Meaningless",
    "add_translated",
    "drop_meaningless",
    "lists",
    "off",
    "only",
    "switches",
    "values",
]
