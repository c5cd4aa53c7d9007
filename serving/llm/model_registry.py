"""`ModelRegistry`: which models there are, under vLLM's names."""

from jaxllm.errors import ConfigError
from jaxllm.models.families.family import Family
from jaxllm.models.families.registry import known_architectures, register


class ModelRegistry:
    """Architectures, by the names that checkpoints give them."""

    @staticmethod
    def get_supported_archs() -> list[str]:
        """All that are known."""
        return known_architectures()

    @staticmethod
    def register_model(model_arch: str, model_cls: object) -> None:
        """Add a `Family` (docs/add-a-model.md), or "module:FAMILY", to those of this process.

        Raises `ConfigError` for a PyTorch class, `ModelError` for a string that is not such a path.
        """
        if not isinstance(model_cls, Family | str):
            raise ConfigError(f"{model_arch}: models are a Family in JAX, not a PyTorch class; see docs/add-a-model.md")
        register(model_arch, model_cls)
