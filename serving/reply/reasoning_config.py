"""The operator's options for a model's reasoning in `--reasoning-config`, in vLLM's words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jaxllm.errors import ConfigError, nearest
from jaxllm.serving.reply.formats.base import ReasoningFormat

_TEXTS = ("reasoning_parser", "reasoning_start_str", "reasoning_end_str")
_NOT_SERVED = "suppress_eos_in_reasoning"


@dataclass(frozen=True)
class ReasoningConfig:
    """Empty where nothing is said."""

    parser: str = ""
    """The name of a format."""
    start: str = ""
    """Begins reasoning, for models of no known format."""
    end: str = ""
    """Written where a budget is used up; it ends as reasoning ends, perhaps after a sentence that leads over."""

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "ReasoningConfig":
        """Raises `ConfigError`."""
        given = given or {}
        for name, value in given.items():
            if name == _NOT_SERVED:
                if value is False:
                    continue
                raise ConfigError(f"reasoning_config: {name} is not supported; omit it")
            if name not in _TEXTS:
                raise ConfigError(
                    f"reasoning_config: unknown name {name!r} (known: {', '.join(_TEXTS)}){nearest(name, _TEXTS)}"
                )
            if not isinstance(value, str):
                raise ConfigError(f"reasoning_config: {name}={value!r}: must be a string")
        return cls(*(given.get(name, "") for name in _TEXTS))

    def completed(self, known: ReasoningFormat | None) -> ReasoningFormat | None:
        """The format of the model: the one that is known, or else one of these tags. Raises `ConfigError`."""
        if known is not None:
            if self.end and not self.end.rstrip().endswith(known.end.rstrip()):
                raise ConfigError(
                    f"reasoning_config: reasoning_end_str={self.end!r} must end with {known.end!r}, which ends this "
                    "model's reasoning"
                )
            return known
        if not self.start and not self.end:
            return None
        if not self.start or not self.end:
            raise ConfigError(
                "reasoning_config: the reasoning format of this model is unknown: give reasoning_start_str and "
                "reasoning_end_str, or --reasoning-parser"
            )
        # Formats are imported when they are named.
        from jaxllm.serving.reply.formats.thinking import Thinking

        return Thinking((self.start,), (self.end,))


NOTHING_SAID: Final = ReasoningConfig()
