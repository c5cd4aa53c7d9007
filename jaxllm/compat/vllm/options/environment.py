"""Environment variables of vLLM that say what options of jaxllm say."""

from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

from jaxllm.errors import ConfigError

_START = "VLLM_"


class Variable(NamedTuple):
    """The option that a variable gives, and how its text is read (`ValueError` where it cannot be)."""

    option: str
    read: Callable[[str], Any]


_LEVELS = {"warn": "warning", "fatal": "critical"}
"""Other names of `logging` for its levels."""


def _level(text: str) -> str:
    return _LEVELS.get(text.lower(), text.lower())


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for part in map(str.strip, text.split(",")) if part)


VARIABLES: Mapping[str, Variable] = {
    "VLLM_API_KEY": Variable("api_key", lambda text: (text,)),
    "VLLM_ATTENTION_BACKEND": Variable("attention_backend", str),
    "VLLM_CPU_KVCACHE_SPACE": Variable("kv_cache_memory_bytes", lambda text: round(float(text) * 2**30) or None),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": Variable("step_timeout", float),
    "VLLM_HTTP_MAX_REQUEST_BODY_SIZE": Variable("max_body_size", int),
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": Variable("timeout_keep_alive", int),
    "VLLM_LOGGING_LEVEL": Variable("log_level", _level),
    "VLLM_LORA_RESOLVER_CACHE_DIR": Variable("lora_resolver_dir", str),
    "VLLM_LORA_RESOLVER_HF_REPO_LIST": Variable("lora_resolver_hf_repos", _parts),
    "VLLM_SERVER_DEV_MODE": Variable("server_dev_mode", lambda text: bool(int(text))),
    "VLLM_XLA_CACHE_PATH": Variable("compilation_cache_dir", str),
}

HARMLESS = frozenset({
    "VLLM_DO_NOT_TRACK", "VLLM_NO_USAGE_STATS", "VLLM_USAGE_SOURCE", "VLLM_TARGET_DEVICE",
    "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_USE_V1", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_DISABLE_LOG_LOGO",
    "VLLM_LOGGING_COLOR", "VLLM_CONFIG_ROOT",
})  # fmt: skip
"""Nothing is lost without these, and nothing is said of them."""


def options_of_variables(
    environ: Mapping[str, str], options: Container[str], say: Callable[[str], None], names: Mapping[str, str]
) -> dict[str, Any]:
    """The values of `options` that vLLM's variables give.

    `say` is told, in a line, of each variable that gives one, and in another line of all that have no effect. `names`
    are jaxllm's own variables by option, which come first. Raises `ConfigError` for a value that cannot be read.
    """
    found: dict[str, Any] = {}
    for name, (option, read) in VARIABLES.items():
        text = environ.get(name, "").strip()
        ours = names.get(option)
        if not text or option not in options or (ours and environ.get(ours, "").strip()):
            continue
        try:
            found[option] = read(text)
        except (ValueError, OverflowError):
            raise ConfigError(
                f"{name}={text!r} in the environment: not a valid value of --{option.replace('_', '-')}"
            ) from None
        instead = f"use {ours} instead" if ours else "flags and files take precedence"
        say(f"{name} sets --{option.replace('_', '-')}; {instead}")
    unused = sorted(
        name for name in environ if name.startswith(_START) and name not in VARIABLES and name not in HARMLESS
    )
    if unused:
        say(f"variables of vLLM in the environment that have no effect here: {', '.join(unused)}")
    return found
