"""`TranscriptionModel`: what a checkpoint's files say of sound, and the prompts that ask for its text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec

from jaxllm.errors import ConfigError, RequestError, nearest, quoted
from jaxllm.requests.transcription_rules import MOST_SUPPRESSED, NAME, Rules, Timestamps
from jaxllm.serving.media.audio.mel import MelFeatures
from jaxllm.serving.media.audio.resample import RATE
from jaxllm.serving.media.checkpoint import read_object
from jaxllm.serving.transcription.languages import NAMES, code_of

GENERATION: Final = "generation_config.json"
Task = Literal["transcribe", "translate"]

_START: Final = "<|startoftranscript|>"
_END: Final = "<|endoftext|>"
_BEFORE: Final = "<|startofprev|>"
_NO_TIMES: Final = "<|notimestamps|>"
_NO_SPEECH: Final = ("<|nospeech|>", "<|nocaptions|>")
"""Newer and older tokenizers."""


class _Generation(msgspec.Struct, frozen=True):
    """What is read of generation_config.json."""

    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    max_initial_timestamp_index: int | None = 50
    is_multilingual: bool | None = None


@dataclass(frozen=True, kw_only=True)
class TranscriptionModel:
    """How a model takes sound and gives text. Immutable, and shared by threads.

    Times are counted in steps of `step` seconds, as the timestamps are: `first_time` is the token of 0, or None where
    the model has none. `languages` are tokens by code, none for a model of English alone.
    """

    features: MelFeatures
    start: int
    end: int
    before: int | None
    """It comes before text that precedes the sound."""
    no_times: int | None
    no_speech: int | None
    tasks: Mapping[str, int]
    languages: Mapping[str, int]
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    most_initial: int | None
    max_length: int
    """Tokens of prompt and text."""

    @classmethod
    def read(cls, folder: Path, token_ids: Mapping[str, int], max_length: int) -> Self:
        """Read the files of a folder; `token_ids` are the tokenizer's special tokens.

        Raises `ConfigError` for a missing or malformed file, missing tokens, and what is not supported.
        """
        features = MelFeatures.read(folder)
        for name in (_START, _END):
            if name not in token_ids:
                raise ConfigError(f"the tokenizer in {folder} has no token {name}")
        said = _read_generation(folder)
        languages = {code: token_ids[f"<|{code}|>"] for code in NAMES if f"<|{code}|>" in token_ids}
        tasks = {name: token_ids[f"<|{name}|>"] for name in ("transcribe", "translate") if f"<|{name}|>" in token_ids}
        # Tokenizers of models for English alone have these tokens, too.
        many = bool(languages and tasks) if said.is_multilingual is None else said.is_multilingual
        return cls(
            features=features,
            start=token_ids[_START],
            end=token_ids[_END],
            before=token_ids.get(_BEFORE),
            no_times=token_ids.get(_NO_TIMES),
            no_speech=next((token_ids[name] for name in _NO_SPEECH if name in token_ids), None),
            tasks=tasks if many else {},
            languages=languages if many else {},
            suppressed=said.suppress_tokens or (),
            suppressed_first=said.begin_suppress_tokens or (),
            most_initial=said.max_initial_timestamp_index,
            max_length=max_length,
        )

    @property
    def first_time(self) -> int | None:
        """The token of the time 0."""
        return None if self.no_times is None else self.no_times + 1

    @property
    def step(self) -> float:
        """Seconds between two timestamps: two frames, which the encoder joins."""
        return 2 * self.features.hop / RATE

    def language(self, asked: str | None) -> str | None:
        """The code of the language that a request names; None where it is to be found out. Raises `RequestError`."""
        if asked is None or not asked.strip():
            return None if self.languages else "en"
        return self.known_language(asked)

    def known_language(self, asked: str, where: str = "language") -> str:
        """The code of a language that the field `where` names. Raises `RequestError`."""
        code = code_of(asked)
        if not self.languages and code != "en":
            raise RequestError(f"{where}={quoted(asked)}: this model knows English only", where)
        if code is None or (self.languages and code not in self.languages):
            known = nearest(asked.lower(), [*self.languages, *(NAMES[each] for each in self.languages)])
            message = f"{where}={quoted(asked)}: expected an ISO 639-1 code of a language that this model knows"
            raise RequestError(f"{message}{known}", where)
        return code

    def check_task(self, task: Task) -> None:
        """Raise `RequestError` for a model that only transcribes."""
        if task == "translate" and task not in self.tasks:
            raise RequestError("this model transcribes, and does not translate: use /v1/audio/transcriptions", "model")

    def opening(self, before: Sequence[int] = ()) -> list[int]:
        """The tokens after which the model tells the language, with text that precedes the sound."""
        if not before or self.before is None:
            return [self.start]
        # At most half of all tokens, as in OpenAI's code.
        return [self.before, *before[-(self.max_length // 2 - 1) :], self.start]

    def prompt(self, language: str, task: Task, before: Sequence[int] = ()) -> list[int]:
        """The tokens after which the text follows, with timestamps where the model has any."""
        spoken = [self.languages[language]] if self.languages else []
        asked = [self.tasks[task]] if self.tasks else []
        return [*self.opening(before), *spoken, *asked]

    def extra_args(self) -> dict[str, Any]:
        """What goes with a request for text: the rules that its tokens must follow."""
        times = None
        if self.no_times is not None:
            times = Timestamps(
                first=self.no_times + 1, end=self.end, none=self.no_times, most_initial=self.most_initial
            )
        rules = Rules(suppressed=self.suppressed, suppressed_first=self.suppressed_first, timestamps=times)
        return {NAME: msgspec.to_builtins(rules)}


def _read_generation(folder: Path) -> _Generation:
    """Raises `ConfigError`."""
    fields = read_object(folder / GENERATION)
    try:
        found = msgspec.convert({key: each for key, each in fields.items() if each is not None}, _Generation)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{folder / GENERATION}: {error}") from None
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        tokens = getattr(found, name) or ()
        if any(not 0 <= token < 2**31 - 1 for token in tokens):
            raise ConfigError(f"{folder / GENERATION}: {name} has numbers that are no tokens")
    count = len(found.suppress_tokens or ()) + len(found.begin_suppress_tokens or ()) + 1
    if count > MOST_SUPPRESSED:
        raise ConfigError(f"{folder / GENERATION}: {count} suppressed tokens; at most {MOST_SUPPRESSED} are supported")
    return found
