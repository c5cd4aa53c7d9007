"""Names of an adapter's files. A process that only looks for adapters needs nothing else, and no JAX."""

from typing import Final

CONFIG_FILE: Final = "adapter_config.json"
WEIGHT_FILES: Final = ("adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors")
"""PEFT's, and that of mlx. The first that is there counts."""
