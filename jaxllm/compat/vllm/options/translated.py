"""Options of vLLM that say in their way what options of jaxllm say."""

import json
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

from jaxllm.errors import ConfigError, nearest


class Translated(NamedTuple):
    """An option that stands for others: `options` makes these, by name, from its value; `about` says which."""

    about: str
    options: Callable[[Any], dict[str, Any]]
    short: str = ""
    takes_value: bool = True


def add_translated(options: MutableMapping[str, Any], name: str, value: Any) -> None:
    """Put what an option of `TRANSLATED` (with dashes) stands for among `options`; JSON objects are merged.

    Values may be text, as on a command line. Raises `ConfigError` for one that cannot be.
    """
    if value is None or value == "None":
        return
    try:
        found = TRANSLATED[name].options(value)
    except ConfigError as error:
        raise ConfigError(f"{name.replace('-', '_')}={value!r}: {error}") from None
    for option, new in found.items():
        old = options.get(option)
        options[option] = {**old, **new} if isinstance(old, Mapping) and isinstance(new, Mapping) else new


def _object(value: Any) -> Mapping[str, Any]:
    """A JSON object, from its text or as it is."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping):
        raise ConfigError("expected a JSON object")
    return value


def _renamed(names: Mapping[str, str]) -> Callable[[Any], dict[str, Any]]:
    """Reads a JSON object. These keys are options; others have no effect."""

    def read(value: Any) -> dict[str, Any]:
        given = _object(value)
        return {ours: given[key] for key, ours in names.items() if given.get(key) not in (None, "")}

    return read


_STRUCTURED = (
    "disable_any_whitespace", "disable_additional_properties", "reasoning_parser", "reasoning_parser_plugin"
)  # fmt: skip
_STRUCTURED_OF_VLLM = ("backend", "disable_fallback", "enable_in_reasoning")


def _structured(value: Any) -> dict[str, Any]:
    """Options of grammars, which are not for the text of reasoning."""
    given, known = _object(value), (*_STRUCTURED, *_STRUCTURED_OF_VLLM)
    unknown = next((key for key in given if key not in known), None)
    if unknown is not None:
        raise ConfigError(f"unknown key {unknown!r}{nearest(unknown, known)}")
    if given.get("enable_in_reasoning"):
        raise ConfigError("enable_in_reasoning: grammars always begin after the reasoning; omit it")
    return _renamed({name: name for name in _STRUCTURED})(given)


_TASKS: Mapping[str, dict[str, Any]] = {
    "auto": {},
    "generate": {"runner": "generate"},
    "embed": {"runner": "pooling", "convert": "embed"},
    "embedding": {"runner": "pooling", "convert": "embed"},
    **{each: {"runner": "pooling"} for each in ("pooling", "classify", "score", "reward")},
}


def _task(value: Any) -> dict[str, Any]:
    if value not in _TASKS:
        raise ConfigError(f"choose one of {', '.join(_TASKS)}{nearest(str(value), _TASKS)}")
    return _TASKS[value]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError("expected a number") from None


def _limits(value: Any) -> dict[str, Any]:
    """Images, videos and sounds of a prompt, as numbers or in objects with them as count; other limits mean nothing."""
    limits, found = _object(value), dict[str, Any]()
    for medium in ("image", "video", "audio"):
        given = limits.get(medium)
        count = given.get("count") if isinstance(given, Mapping) else given
        if count is None:
            continue
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigError(f"{medium}: expected a number of {medium}s, or an object with it as count")
        if count or medium != "image":
            found[f"max_{medium}s_per_prompt"] = count
        else:
            found["language_model_only"] = True
    return found


TRANSLATED: Mapping[str, Translated] = {
    "limit-mm-per-prompt": Translated(
        "JSON of --max-images-per-prompt (image), --max-videos-per-prompt (video) and --max-audios-per-prompt (audio); "
        "no images stand for --language-model-only",
        _limits,
    ),
    "structured-outputs-config": Translated(
        "JSON of --disable-any-whitespace, --disable-additional-properties, --reasoning-parser and "
        "--reasoning-parser-plugin; grammars are compiled by llguidance, whatever backend is given",
        _structured,
    ),
    "attention-config": Translated(
        "JSON of --attention-backend (backend)", _renamed({"backend": "attention_backend"}), "ac"
    ),
    "kernel-config": Translated(
        "JSON of --moe-backend (moe_backend) and --linear-backend (linear_backend)",
        _renamed({"moe_backend": "moe_backend", "linear_backend": "linear_backend"}),
    ),
    "profiler-config": Translated(
        "JSON of --profiler-dir (torch_profiler_dir)", _renamed({"torch_profiler_dir": "profiler_dir"})
    ),
    "logging-config": Translated(
        "JSON of --log-level (log_level) and --log-format (formatter)",
        lambda value: {
            name: str(text).lower()
            for name, text in _renamed({"log_level": "log_level", "formatter": "log_format"})(value).items()
        },
    ),
    "guided-decoding-disable-any-whitespace": Translated(
        "--disable-any-whitespace", lambda value: {"disable_any_whitespace": value}, takes_value=False
    ),
    "guided-decoding-disable-additional-properties": Translated(
        "--disable-additional-properties",
        lambda value: {"disable_additional_properties": value},
        takes_value=False,
    ),
    "device-memory-utilization": Translated(
        "--gpu-memory-utilization", lambda value: {"gpu_memory_utilization": _number(value)}
    ),
    "task": Translated("--runner and --convert", _task),
    "rope-scaling": Translated(
        "rope_scaling in --hf-overrides", lambda value: {"hf_overrides": {"rope_scaling": dict(_object(value))}}
    ),
    "rope-theta": Translated(
        "rope_theta in --hf-overrides", lambda value: {"hf_overrides": {"rope_theta": _number(value)}}
    ),
}  # fmt: skip
"""By name, with dashes. An object's keys that are not options change nothing here."""
