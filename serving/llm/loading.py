"""What is loaded besides an engine: the tokenizer, the parameters of requests that bring none, what tries grammars."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jaxllm.config import EngineConfig, ModelOptions
from jaxllm.config.engine_info import EngineInfo
from jaxllm.errors import ConfigError, RequestError
from jaxllm.executor.model_files import model_folder, tokenizer_folder
from jaxllm.models.checkpoint.other_formats import is_file
from jaxllm.models.errors import ModelError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.text.cached_tokenizer import load_quickly, prepare_templates
from jaxllm.serving.text.library import failing_as
from jaxllm.serving.text.loading import ADVICE, check_files
from jaxllm.serving.text.tokenizer import Tokenizer
from jaxllm.structured.backend import Vocabulary

if TYPE_CHECKING:
    from jaxllm.serving.text.prompt_images import PromptImages
    from jaxllm.serving.text.sound_samples import PromptSound
    from jaxllm.structured.grammar_sandbox.checker import CanaryChecker

_NAMES = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


def prompt_media(
    info: EngineInfo, tokenizer: Tokenizer | None, options: MediaOptions | None
) -> "tuple[PromptImages | None, PromptSound | None]":
    """How the model takes images and sound, each None where it takes none.

    Raises `ConfigError` for what is wrong with the options' mm_processor_kwargs.
    """
    if info.images is None and info.sound is None:
        return None, None
    # Most models take neither: starts are faster without the import.
    from jaxllm.serving.text.prompt_media import PromptMediaMakers

    makers = PromptMediaMakers(info, tokenizer, options)
    return makers.images, makers.sound


def default_params(options: ModelOptions, folder: Path) -> SamplingParams:
    """The parameters of requests that bring none, for a model in `folder`. Raises `ConfigError`."""
    match options.generation_config:
        case "auto":
            found = read_default_params(folder)
        case "vllm":
            found = SamplingParams()
        case name:
            if not is_file(Path(name) / "generation_config.json"):
                raise ConfigError(
                    f"generation_config={name!r}: must be 'auto', 'vllm', or a folder with generation_config.json"
                )
            found = read_default_params(Path(name))
    given = options.override_generation_config or {}
    try:
        return msgspec.structs.replace(found, **_ours(given))
    except (AttributeError, TypeError, RequestError) as error:
        raise ConfigError(f"override_generation_config={dict(given)!r}: {error}") from error


def _ours(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a generation_config.json that are ours, under our names."""
    return {ours: given[theirs] for theirs, ours in _NAMES.items() if given.get(theirs) is not None}


def called_overrides(change: Callable[[Any], Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """What `change` makes different in the configuration that `transformers` reads of the model of these options.

    Raises `ConfigError`.
    """
    # Slow to import, and seldom asked for.
    from transformers import AutoConfig

    known = {item.name for item in dataclasses.fields(ModelOptions)} - {"hf_overrides"}
    given = EngineConfig.from_options({name: value for name, value in options.items() if name in known}).model
    try:
        folder = model_folder(given)
    except ModelError as error:
        raise ConfigError(str(error)) from error
    # Odd values make it raise anything.
    with failing_as(lambda reason: ConfigError(f"hf_overrides: transformers cannot read the configuration: {reason}")):
        before, after = (AutoConfig.from_pretrained(folder) for _ in range(2))
    changed = change(after)
    if not hasattr(changed, "to_dict"):
        raise ConfigError(f"hf_overrides: the function returned {type(changed).__name__}, not the configuration")
    old = before.to_dict()
    return {name: value for name, value in changed.to_dict().items() if name not in old or old[name] != value}


def read_default_params(folder: Path) -> SamplingParams:
    """The parameters of requests that bring none; `SamplingParams()` where the file is missing or silent.

    Raises `ConfigError` for a file that is not JSON or holds impossible values.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return SamplingParams()
    try:
        given: Any = json.loads(path.read_text(encoding="utf-8"))
        return SamplingParams(**_ours(given))
    except (ValueError, AttributeError, RequestError) as error:
        raise ConfigError(f"{path}: {error}") from error


def find_tokenizer(options: ModelOptions) -> Path:
    """The folder of the tokenizer asked for, or of the model. Raises `ConfigError` where there is none."""
    try:
        folder = tokenizer_folder(options)
    except ModelError as error:
        raise ConfigError(f"tokenizer: {error}" if options.tokenizer else str(error)) from error
    check_files(folder)
    return folder


def load_tokenizer(options: ModelOptions) -> Tokenizer:
    """The tokenizer asked for, or the model's own. Raises `ConfigError`.

    What only conversations need is left to the first of them (`cached_tokenizer`).
    """
    return load_quickly(find_tokenizer(options))


def load_tokenizer_for_server(options: ModelOptions) -> Tokenizer:
    """`load_tokenizer`, with all that takes long made: later, every stream would wait for it."""
    tokenizer = load_tokenizer(options)
    with failing_as(lambda reason: ConfigError(f"cannot use the tokenizer of {options.model!r}: {reason}; {ADVICE}")):
        assert tokenizer.control.backend is not None
    prepare_templates(tokenizer)
    return tokenizer


def load_nothing(options: ModelOptions) -> None:
    """In place of a tokenizer."""


def check_vocabulary(tokenizer: Tokenizer | None, vocab_size: int) -> None:
    """Raise `ConfigError` when the tokenizer has token ids which the model does not know."""
    if tokenizer is not None and tokenizer.size > vocab_size:
        raise ConfigError(
            f"the tokenizer has token IDs up to {tokenizer.size - 1}, but the model's vocabulary ends at "
            f"{vocab_size - 1}: they do not match; give the right tokenizer with tokenizer=..."
        )


def form_checker(config: EngineConfig, info: EngineInfo, tokenizer: Tokenizer | None) -> "CanaryChecker":
    """What tries grammars for this engine in a process of their own. Raises `ConfigError` where that cannot be."""
    from jaxllm.structured.grammar_sandbox.checker import make_canary_checker

    options = config.model
    ends = info.eos_token_ids
    if not ends and tokenizer is not None and tokenizer.eos_token_id is not None:
        ends = (tokenizer.eos_token_id,)
    try:
        folder = tokenizer_folder(options, Path(info.model_folder))
        return make_canary_checker(config.structured, Vocabulary(folder, info.vocab_size, ends))
    except (ModelError, RequestError) as error:
        raise ConfigError(str(error)) from error
