"""The changes of the option `pooler_config` to how a model pools, under vLLM's names."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from jaxllm.errors import ConfigError, nearest
from jaxllm.pooling.answers import ANSWERS
from jaxllm.pooling.settings import PoolingSettings, PoolingType

_TYPES, _OF_TOKENS = get_args(PoolingType), ("all", "step")
_SWITCHES = ("normalize", "use_activation", "matryoshka")
KNOWN = ("task", "pooling_type", "seq_pooling_type", "tok_pooling_type", *_SWITCHES, "step_tag_id", ANSWERS)


def override(settings: PoolingSettings, given: Mapping[str, Any]) -> PoolingSettings:
    """The settings with what was given in their place. Raises `ConfigError`."""
    for name in given:
        if name not in KNOWN:
            raise ConfigError(f"pooler_config: unknown key {name!r}{nearest(name, KNOWN)} (known: {', '.join(KNOWN)})")
    if ANSWERS in given and not settings.answers:
        raise ConfigError(f"pooler_config: {ANSWERS}: only generative models choose between tokens")
    step = given.get("step_tag_id")
    if step is not None:
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise ConfigError(f"pooler_config: step_tag_id={step!r}: must be a token ID")
        settings = replace(settings, step_token_id=step)
    for name in ("pooling_type", "seq_pooling_type", "tok_pooling_type"):
        if given.get(name) is not None:
            settings = _with_type(settings, name, given[name])
    for name in _SWITCHES:
        if name in given:
            settings = _switched(settings, name, given[name])
    return settings if given.get("task") is None else _with_task(settings, given["task"])


def _with_type(settings: PoolingSettings, name: str, value: Any) -> PoolingSettings:
    """Whole texts are pooled from some of their tokens, and results of tokens are those of all or of steps."""
    known = (*(() if name == "tok_pooling_type" else _TYPES), *(() if name == "seq_pooling_type" else _OF_TOKENS))
    chosen = str(value).lower()
    if chosen not in known:
        raise ConfigError(f"pooler_config: {name}={value!r}: choose one of {', '.join(known)}")
    if chosen == "all":
        return replace(settings, step_token_id=None)
    if chosen == "step":
        if settings.step_token_id is None:
            raise ConfigError(f"pooler_config: {name}={value!r}: requires step_tag_id, the token that ends a step")
        return settings
    return replace(settings, pooling_type=chosen)  # type: ignore[arg-type]


def _switched(settings: PoolingSettings, name: str, value: Any) -> PoolingSettings:
    if not isinstance(value, bool):
        raise ConfigError(f"pooler_config: {name}={value!r}: must be true or false")
    if name == "matryoshka":
        return replace(settings, matryoshka=(settings.matryoshka or ()) if value else None)
    return replace(settings, **{name: value})  # type: ignore[arg-type]


def _with_task(settings: PoolingSettings, task: Any) -> PoolingSettings:
    if task not in settings.tasks:
        raise ConfigError(f"pooler_config: task={task!r}: this model supports {', '.join(settings.tasks)}")
    return replace(settings, only=task)
