"""Small random models of every family that transformers has, from the tests that compare their logits."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from jaxllm.models.config import ModelConfig
from tests.models import test_expert_families as experts
from tests.models import test_families as others
from tests.models import test_gemma_families as gemma
from tests.models import test_recurrent_families as recurrent
from tests.models.families import test_decoders as gpt_like
from tests.models.stacks import COVERING, EVERY_FAMILY


@dataclass(frozen=True)
class Family:
    """A case of a table, and what writes its checkpoint; each table has its own kind of case."""

    write: Callable[[Path, Any], torch.nn.Module]
    case: Any

    def save(self, folder: Path, **options: Any) -> torch.nn.Module:
        """A model in `folder`, with these options in place of the case's."""
        return self.write(folder, replace(self.case, options={**self.case.options, **options}))


_TABLES: tuple[tuple[Callable[[Path, Any], torch.nn.Module], dict[str, Any]], ...] = (
    (others.save, others.CASES),
    (gpt_like.save, gpt_like.CASES),
    (experts.save_all_random, experts.CASES),
    (experts.save_arctic, experts.ARCTIC),
    (gemma.save_random, gemma.CASES),
    (recurrent.save_random, recurrent.CASES),
)
_FIRST = {
    name: others.Case(name.capitalize(), options)
    for name, options in {
        "llama": {},
        "mistral": {"sliding_window": 5},
        "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        "qwen3": {"head_dim": 16},
    }.items()
}

FAMILIES: dict[str, Family] = {
    **{name: Family(others.save, case) for name, case in _FIRST.items()},
    **{name: Family(write, case) for write, cases in _TABLES for name, case in cases.items()},
}
"""By the name of the case."""


def covering() -> tuple[str, ...]:
    """Names for a test that takes long: of all families where the environment has JAXLLM_EVERY_FAMILY."""
    return tuple(FAMILIES) if EVERY_FAMILY else COVERING


def choices(config: ModelConfig) -> set[tuple[str, Any]]:
    """The choices of a configuration, by class and field: of numbers, whether they are zero."""
    found: set[tuple[str, Any]] = set()

    def look(value: Any, of: str) -> None:
        if dataclasses.is_dataclass(value):
            found.add((of, type(value)))
            for each in dataclasses.fields(value):
                look(getattr(value, each.name), f"{type(value).__name__}.{each.name}")
        elif isinstance(value, tuple) and value:
            for part in value:
                look(part, of)
        elif of.rsplit(".", maxsplit=1)[-1] != "architecture":
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            found.add((of, bool(value) if is_number else value))

    look(config, "")
    return found
