"""The `transformers` tokenizer of a folder, whatever its config.json says of the model."""

import json
from pathlib import Path
from typing import Any

from jaxllm.errors import ConfigError
from jaxllm.models.checkpoint.other_formats import TOKENIZER_PROBLEM
from jaxllm.serving.text.library import failing_as, import_transformers

ADVICE = "give another with tokenizer=..."


def check_files(folder: Path) -> None:
    """Raise `ConfigError` for a folder without files of a tokenizer. Anything else may be a hub id."""
    if (folder / TOKENIZER_PROBLEM).is_file():
        raise ConfigError((folder / TOKENIZER_PROBLEM).read_text(encoding="utf-8"))
    if folder.is_dir() and not any(folder.glob("*token*")) and not any(folder.glob("vocab*")):
        raise ConfigError(f"no tokenizer files (tokenizer.json, ...) in {folder}: {ADVICE}")


def load_fast(name: str | Path, revision: str | None = None, download_dir: str | None = None) -> Any:
    """The fast `transformers` tokenizer of a local folder or a hub id.

    Only names are read from a folder's config.json, if present: `transformers` would make a configuration
    of the whole file, and many of those that models run with fail its checks.
    Raises `ConfigError` when there is no tokenizer, or none of the fast kind.
    """
    check_files(Path(name))
    # Whatever a broken file makes the libraries raise, the user's mistake is the same.
    with failing_as(lambda reason: ConfigError(f"cannot load a tokenizer from {str(name)!r}: {reason}; {ADVICE}")):
        hf = _of_folder(Path(name)) if Path(name).is_dir() else _of_hub(str(name), revision, download_dir)
    if not getattr(hf, "is_fast", False):
        raise ConfigError(f"the tokenizer of {str(name)!r} has no fast version (tokenizer.json): {ADVICE}")
    return hf


def _of_hub(name: str, revision: str | None, download_dir: str | None) -> Any:
    auto = import_transformers().AutoTokenizer
    return auto.from_pretrained(name, revision=revision, cache_dir=download_dir)


def _of_folder(folder: Path) -> Any:
    transformers = import_transformers()
    options = _object(folder / "tokenizer_config.json")
    names = _object(folder / "config.json")
    config = _configuration(names)
    config.name_or_path = str(folder)
    has_class = any(_is_known(each.get("tokenizer_class")) for each in (options, names))
    is_own = not config.model_type or "auto_map" in options
    if not has_class and is_own and (folder / "tokenizer.json").is_file():
        # Nobody says whose it is, or code that is not run does, and it is complete without that.
        return transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))
    return transformers.AutoTokenizer.from_pretrained(str(folder), config=config, trust_remote_code=False)


def _is_known(tokenizer_class: Any) -> bool:
    """Whether it is a class of `transformers`: others are code alongside the files, which is not run."""
    # As in `import_transformers`, after it.
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    return isinstance(tokenizer_class, str) and tokenizer_class_from_name(tokenizer_class) is not None


def _configuration(names: dict[str, Any]) -> Any:
    """The parts of a model that `AutoTokenizer` asks for: its type, which may name a kind of tokenizer, and names."""
    # As in `import_transformers`, after it.
    from transformers import PreTrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = names.get("model_type")
    known = CONFIG_MAPPING[kind] if isinstance(kind, str) and kind in CONFIG_MAPPING else None
    try:
        config = PreTrainedConfig() if known is None else known()
    # One without defaults for all that it needs.
    except Exception:  # noqa: BLE001
        config = PreTrainedConfig()
    for name in ("tokenizer_class", "model_name"):
        if isinstance(names.get(name), str):
            setattr(config, name, names[name])
    return config


def _object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty where there is none, which others complain of if they need it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
