"""Where each setting of a server came from, for the banner."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from jaxllm.config import PRESETS, OptionInfo
from jaxllm.flags import Flag

COMPUTED: Final = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "dtype", "kv_cache_dtype")
"""Options whose defaults follow from the model and the device, and which the engine tells once it has started."""


@dataclass(frozen=True)
class Origins:
    """What was given, by where it was: the weakest place first."""

    layers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    options: Mapping[str, OptionInfo] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        flags: tuple[Flag, ...],
        environment: Mapping[str, Any],
        file: tuple[str | None, Mapping[str, Any]],
        given: Mapping[str, Any],
    ) -> Self:
        """From what the environment, the file of this name and the command line say."""
        layers = [("environment", environment), (Path(file[0] or "").name, file[1]), ("flags", given)]
        every = {name: value for _, values in layers for name, value in values.items()}
        preset = PRESETS.get(str(every.get("preset")))
        if preset is not None:
            layers.insert(0, (f"preset {every['preset']}", preset.options))
        return cls(tuple(layers), {flag.name: flag.info for flag in flags})

    @property
    def values(self) -> dict[str, Any]:
        """All that was given; the preset itself is an option that stands for its own."""
        return {
            name: value
            for where, values in self.layers
            if not where.startswith("preset ")
            for name, value in values.items()
        }

    def rows(self, computed: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """A row for each place: what it gave and no stronger place did; last, defaults that the engine computed."""
        winner = {name: where for where, values in self.layers for name in values}
        for where, values in self.layers:
            shown = [self._shown(name, value) for name, value in values.items() if winner[name] == where]
            if shown:
                yield where, ", ".join(shown)
        left = [f"{_flag(name)} {computed[name]}" for name in COMPUTED if name in computed and winner.get(name) is None]
        if self.layers and left:
            yield "computed", ", ".join(left)

    def _shown(self, name: str, value: Any) -> str:
        info = self.options.get(name)
        if info is not None and not info.may_be_shown(value):
            return f"{_flag(name)} (not shown)"
        if isinstance(value, bool):
            return _flag(name) if value else f"no-{_flag(name)}"
        return f"{_flag(name)} {' '.join(value) if isinstance(value, tuple) else value}"


NO_ORIGINS: Final = Origins()


def _flag(name: str) -> str:
    return name.replace("_", "-")
