"""A model whose encoder and language model are checkpoints of their own, as one folder.

Ultravox is published so: its repository has the weights of what is between the two, and the names of the others in
config.json (`audio_model_id`, `text_model_id`), and those of an encoder that was trained further.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.made_folder import cache_home, digest_of, made_folder
from jaxllm.models.checkpoint.weight_files import INDEX_FILE
from jaxllm.models.errors import ModelError

MODEL_TYPE: Final = "ultravox"
MARKER: Final = "<|audio|>"
"""The token in whose place sound stands."""

_FORMAT: Final = "jaxllm parts 1"
_CONFIG, _SOUND = "config.json", "preprocessor_config.json"
_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_TEXT_FILES: Final = (
    *_TOKENIZER, "chat_template.jinja", "vocab.json", "merges.txt", "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class _Part:
    """A part: the field with its name, the section that its configuration becomes, and what its own tensors are."""

    field: str
    section: str
    subject: str
    own: tuple[str, ...]
    """Beginnings of the names of tensors that take the place of the part's weights."""


_AUDIO: Final = _Part("audio_model_id", "audio_config", "encoder of sound", ("audio_tower.",))
_TEXT: Final = _Part("text_model_id", "text_config", "language model", ("language_model.", "model.", "lm_head."))


def has_parts(folder: Path) -> bool:
    """Whether a folder is that of a model whose parts may be elsewhere. Raises `ModelError`."""
    path = folder / _CONFIG
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        # Who reads it says what is wrong.
        return False
    # Of most models, whoever needs it decodes it.
    return MODEL_TYPE in text and ConfigFile.read(path).values.get("model_type") == MODEL_TYPE


def joined_folder(
    folder: Path, overrides: Mapping[str, Any] | None, find: Callable[[str], Path], *, weights: bool
) -> Path:
    """The folder that stands for a model and its parts, made in the user's cache if it is not there.

    `overrides` may name other parts than config.json; `find` gives the folder of a part. Raises `ModelError` that says
    which part is missing, and how to name another folder.
    """
    # Others are for who reads the joint configuration.
    named = {part.field: overrides[part.field] for part in (_AUDIO, _TEXT) if overrides and part.field in overrides}
    values = {**ConfigFile.read(folder / _CONFIG).values, **named}
    parts = {part: _found(part, values, folder, find) for part in (_AUDIO, _TEXT)}
    there = {part: place for part, place in parts.items() if place is not None}
    weight_files = _weight_files(folder, there) if weights else {}
    places = [folder.resolve(), *(place.resolve() for place in there.values())]
    small = [place / name for place in places for name in (_CONFIG, _SOUND, *_TEXT_FILES) if (place / name).is_file()]
    about = f"{_FORMAT}\n{json.dumps(values, sort_keys=True)}\n{places}"

    def fill(new: Path) -> None:
        _write_small(new, folder, values, there)
        if weight_files:
            links = {f"{kind}-{file.name}": file.resolve() for kind, files in weight_files.items() for file in files}
            for name, file in links.items():
                (new / name).symlink_to(file)
            _write(new / INDEX_FILE, {"weight_map": {name: name for name in links}})

    digest = digest_of(about, [*small, *(file for files in weight_files.values() for file in files)])
    return made_folder(cache_home("parts"), digest, fill)


def _found(part: _Part, values: Mapping[str, Any], folder: Path, find: Callable[[str], Path]) -> Path | None:
    """The folder of a part; None where the model has it itself."""
    name = values.get(part.field)
    if not isinstance(name, str) or not name:
        return None
    try:
        found = find(name)
        if not (found / _CONFIG).is_file():
            raise ModelError(f"{found}: has no {_CONFIG}")
    except ModelError as error:
        raise ModelError(
            f"{folder / _CONFIG}: the model's {part.subject} is {name[:200]!r} ({part.field}), which cannot be read: "
            f'{error}; download it, and name its folder: --hf-overrides \'{{"{part.field}": "FOLDER"}}\''
        ) from None
    return found


def _weight_files(folder: Path, parts: Mapping[_Part, Path]) -> dict[str, list[Path]]:
    """The files with weights of the model and its parts. Those that it has itself are not read from a part."""
    own = Checkpoint(folder)
    try:
        names = [tensor.name for tensor in own.tensors]
    except ModelError:
        # Random weights need none, and others are missed when they are read.
        return {}
    found = {"own": own.files}
    for part, place in parts.items():
        if not any(name.startswith(part.own) for name in names):
            found[part.section.partition("_")[0]] = Checkpoint(place).files
    return found


def _write_small(new: Path, folder: Path, values: Mapping[str, Any], parts: Mapping[_Part, Path]) -> None:
    """Configuration, tokenizer, and how sound is processed."""
    config = {**values, **{part.section: ConfigFile.read(place / _CONFIG).values for part, place in parts.items()}}
    for part in (_AUDIO, _TEXT):
        config.pop(part.field, None)
    for place in filter(None, (folder, parts.get(_TEXT))):
        for name in _TEXT_FILES:
            if (place / name).is_file() and not (new / name).exists():
                shutil.copyfile(place / name, new / name)
    sound = _sound_settings(folder, parts.get(_AUDIO))
    bins = (config.get(_AUDIO.section) or {}).get("num_mel_bins", 80)
    _write(new / _SOUND, sound or {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": bins})
    _write(new / _CONFIG, _with_known_marker(new, config))


def _sound_settings(folder: Path, audio: Path | None) -> Mapping[str, Any] | None:
    """How features are made, as the encoder's files say it, or the model's own; None where neither does."""
    paths = [place / _SOUND for place in (audio, folder) if place is not None]
    found = (ConfigFile.read(path).values for path in paths if path.is_file())
    # A model's own file of this name may be about other things.
    return next((values for values in found if "feature_size" in values), None)


def _with_known_marker(new: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the number of a marker that the embedding has a row for.

    Tokenizers of Ultravox have it as a token after all others, for which Llama's embedding has none. It then gets the
    number of the first token that the language model has in reserve.
    """
    size = (config.get(_TEXT.section) or {}).get("vocab_size")
    path = new / _TOKENIZER[0]
    if not isinstance(size, int) or not path.is_file():
        return config
    whole = dict(ConfigFile.read(path).values)
    added = [each for each in whole.get("added_tokens") or [] if isinstance(each, dict)]
    numbers = {each.get("content"): each.get("id") for each in added}
    number = numbers.get(MARKER, config.get("audio_token_index"))
    if not isinstance(number, int) or number < size:
        return config if number is None else {**config, "audio_token_index": number}
    spare = next((name for name, at in numbers.items() if "reserved" in str(name) and 0 <= (at or 0) < size), None)
    if spare is None:
        raise ModelError(f"{path}: {MARKER} is token {number}, but the language model has {size}, and none in reserve")
    kept = [each for each in added if each.get("content") != MARKER]
    whole["added_tokens"] = [{**each, "content": MARKER} if each.get("content") == spare else each for each in kept]
    _rename_in_vocabulary(whole, str(spare))
    _write(path, whole)
    for name in _TOKENIZER[1:]:
        _rename_in_options(new / name, str(spare), number)
    return {**config, "audio_token_index": numbers[spare]}


def _rename_in_vocabulary(whole: dict[str, Any], spare: str) -> None:
    """Some tokenizers list added tokens among all others, too."""
    vocabulary = (whole.get("model") or {}).get("vocab")
    if isinstance(vocabulary, dict) and spare in vocabulary:
        vocabulary.pop(MARKER, None)
        vocabulary[MARKER] = vocabulary.pop(spare)


def _rename_in_options(path: Path, spare: str, number: int) -> None:
    """Other files name added tokens once more: those that tokenizer.json lacks would be added to it."""
    if not path.is_file():
        return
    options = dict(ConfigFile.read(path).values)
    listed = options.get("added_tokens_decoder")
    if isinstance(listed, dict):
        options["added_tokens_decoder"] = {key: each for key, each in listed.items() if key != str(number)}
    _write(path, _renamed(options, spare))


def _renamed(value: Any, spare: str) -> Any:
    """A value of JSON with the marker in place of the token, and no text twice in a list."""
    if isinstance(value, dict):
        return {key: _renamed(each, spare) for key, each in value.items()}
    if isinstance(value, list):
        found = [_renamed(each, spare) for each in value]
        return [each for place, each in enumerate(found) if each not in found[:place]]
    return MARKER if value == spare else value


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
