"""The pooling options of a folder of sentence-transformers: `modules.json` and the files it names."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.projection import DenseLayer, read_dense

MODULES = "modules.json"
KNOWN = ("Transformer", "Pooling", "Dense", "Normalize")
"""Modules, in the order in which they may stand."""
_MODES: dict[str, Literal["last", "mean", "cls"]] = {"lasttoken": "last", "mean": "mean", "cls": "cls"}
_FLAGS = {"pooling_mode_lasttoken": "last", "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True)
class SentenceTransformers:
    """How sentence-transformers would pool; `max_length` is the most tokens it would read, if it says.

    `dense` are layers between pooling and normalisation. With `is_late_interaction` nothing is pooled, and they follow
    each token.
    """

    pooling_type: Literal["last", "mean", "cls"]
    normalize: bool
    max_length: int | None
    dense: tuple[DenseLayer, ...] = ()
    is_late_interaction: bool = False


def read_sentence_transformers(folder: Path) -> SentenceTransformers | None:
    """What is found in `folder`; None for another model's. Raises `ModelError` for modules that are not supported."""
    path = folder / MODULES
    if not path.is_file():
        return None
    try:
        modules: Any = json.loads(path.read_text(encoding="utf-8"))
        kinds = [(module["type"].rpartition(".")[2], module["path"]) for module in modules]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ModelError(f"{path}: expected a list of modules with 'type' and 'path'") from None
    outside = [where for _, where in kinds if not isinstance(where, str) or not _is_inside(where)]
    if outside:
        raise ModelError(f"{path}: path {outside[0]!r} leaves this folder")
    unknown = [kind for kind, _ in kinds if kind not in KNOWN]
    if unknown:
        raise ModelError(f"{path}: module {unknown[0]!r} is not supported (known: {', '.join(KNOWN)})")
    order = [KNOWN.index(kind) for kind, _ in kinds]
    if order != sorted(order):
        raise ModelError(f"{path}: modules must be in the order {', '.join(KNOWN)}")
    pooling = next((where for kind, where in kinds if kind == "Pooling"), None)
    dense = _dense(folder, [where for kind, where in kinds if kind == "Dense"])
    return SentenceTransformers(
        "cls" if pooling is None else _pooling_type(folder / pooling),
        normalize=any(kind == "Normalize" for kind, _ in kinds),
        max_length=_max_length(folder),
        dense=dense,
        is_late_interaction=pooling is None and bool(dense),
    )


def _is_inside(path: str) -> bool:
    return not Path(path).is_absolute() and ".." not in Path(path).parts


def _dense(folder: Path, paths: list[str]) -> tuple[DenseLayer, ...]:
    layers = tuple(read_dense(folder, path) for path in paths)
    for first, then in pairwise(layers):
        if first.out_size != then.in_size:
            raise ModelError(f"{folder / then.path}: expects {then.in_size} inputs, but gets {first.out_size}")
    return layers


def _pooling_type(folder: Path) -> Literal["last", "mean", "cls"]:
    file = ConfigFile.read(folder / "config.json")
    mode = file.text("pooling_mode", "")
    if mode:
        chosen = [mode]
    else:
        chosen = [
            name for name in file.values if name.startswith("pooling_mode_") and file.boolean(name, False) is True
        ]
    if len(chosen) == 1 and chosen[0] in _FLAGS:
        return _FLAGS[chosen[0]]  # type: ignore[return-value]
    if len(chosen) == 1 and chosen[0] in _MODES:
        return _MODES[chosen[0]]
    raise ModelError(
        f"{file.source}: pooling with {chosen or 'nothing'} is not supported (known: last token, mean, cls)"
    )


def _max_length(folder: Path) -> int | None:
    """`max_seq_length`, from the file in which this kind of model keeps it."""
    for path in sorted(folder.glob("sentence_*_config.json")):
        return ConfigFile.read(path).optional_integer("max_seq_length")
    return None
