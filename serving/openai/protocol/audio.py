"""Transcriptions and translations of sound, as OpenAI's interface has them, with vLLM's fields."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from jaxllm.serving.http.body.base import Answer, Body, Ignored, Refused
from jaxllm.serving.http.body.bounds import (
    AtLeastOne,
    Int64,
    NotNegative,
    OrMinusOne,
    Penalty,
    Positive,
    Probability,
    Share,
    at_most,
)

MOST_PROMPT: int = 16384
"""Characters."""
MOST_LANGUAGES: int = 128
MOST_KEYWORDS: int = 1024
_SPEAKERS = "speakers are not told apart"
_PAUSES = "long sound is always cut in its pauses"

ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]


class AudioRequest(Body, kw_only=True):
    """The fields of a form beside its `file`."""

    model: str | None = None
    """Which model: one of /v1/models. Left out, it is the first of them."""
    language: str | None = None
    """What is spoken: its ISO 639-1 code. Left out, the first 30 seconds tell it."""
    languages: Annotated[list[str], at_most(MOST_LANGUAGES)] | None = None
    """What may be spoken, where language is left out: one of these."""
    prompt: Annotated[str, Meta(max_length=MOST_PROMPT)] | None = None
    """Text that might precede the sound, in its language: it tells how names are spelled."""
    keywords: Annotated[list[str], at_most(MOST_KEYWORDS)] | None = None
    """Names and phrases that may be spoken; they precede the prompt."""
    response_format: ResponseFormat | None = None
    """Default json. srt and vtt are subtitles, verbose_json has segments with times."""
    temperature: NotNegative | None = None
    """Randomness; default 0."""
    stream: bool | None = None
    """Send the text as it is understood, as server-sent events; only with the response format json."""
    seed: Int64 | None = None
    """Same seed, same tokens, whatever else the server does."""
    top_p: Share | None = None
    """Draw from the smallest set of most likely tokens whose probability reaches this, in (0, 1]."""
    top_k: OrMinusOne | None = None
    """Draw from this many of the most likely tokens; 0 or -1: from all."""
    min_p: Probability | None = None
    """Draw from tokens at least this likely relative to the most likely one, in [0, 1]."""
    frequency_penalty: Penalty | None = None
    """From -2 to 2: lowers the logit of a token each time it was generated."""
    presence_penalty: Penalty | None = None
    """From -2 to 2: lowers the logit of tokens that were generated at all."""
    repetition_penalty: Positive | None = None
    """Greater than 0: divides the logits of tokens in prompt or output."""
    max_completion_tokens: AtLeastOne | None = None
    """Most tokens of each window of 30 seconds."""
    request_id: str | None = None
    """Part of the log; by default random."""
    timeout: Positive | None = None
    """Seconds in which the whole request must be answered; at most, and by default, the server's limit."""
    user: str | None = None
    """Accepted, without effect."""

    chunking_strategy: Annotated[Any, Ignored(_PAUSES, ("auto",))] = None
    stream_include_usage: Annotated[Any, Ignored("the last event always has it", ("true", "false"))] = None
    stream_continuous_usage_stats: Annotated[Any, Ignored("the last event has the usage", ("false",))] = None
    known_speaker_names: Annotated[Any, Refused(_SPEAKERS, ([],))] = None
    known_speaker_references: Annotated[Any, Refused(_SPEAKERS, ([],))] = None
    to_language: Annotated[Any, Refused("Whisper translates into English", ("en",))] = None


class TranscriptionRequest(AudioRequest, kw_only=True):
    """A transcription: text in the language that is spoken."""

    timestamp_granularities: Annotated[list[Literal["segment", "word"]], at_most(2)] | None = None
    """With verbose_json: segment. Times of words are not supported."""
    include: Annotated[Any, Ignored("log-probabilities of tokens are not returned", ([],))] = None


class TranslationRequest(AudioRequest, kw_only=True):
    """A translation into English."""


class DurationUsage(Answer, kw_only=True):
    """How long the sound was."""

    type: Literal["duration"] = "duration"
    seconds: int
    """Rounded up."""


class TokenUsage(Answer, kw_only=True):
    """Tokens of all windows of the sound."""

    type: Literal["tokens"] = "tokens"
    input_tokens: int
    """Of prompts, the language found out included; sound has none."""
    output_tokens: int
    total_tokens: int


class Transcription(Answer, kw_only=True):
    """The text of sound."""

    text: str
    usage: DurationUsage


class TranscriptionSegment(Answer, kw_only=True):
    """Some of the text, with times in seconds."""

    id: int
    seek: int
    """Where the window begins in which it was heard, in hundredths of a second."""
    start: float
    end: float
    text: str
    tokens: list[int]
    """With those of its times."""
    temperature: float
    avg_logprob: float
    """The mean log-probability of its tokens by the model, without the rules of timestamps."""
    compression_ratio: float
    """How much shorter zlib makes the text: more than 2.4 where it repeats itself."""
    no_speech_prob: float
    """How likely the window has no speech."""


class VerboseTranscription(Answer, kw_only=True):
    """The text of sound, with its segments."""

    task: Literal["transcribe", "translate"]
    language: str
    """What is spoken, in English and lower case."""
    duration: float
    text: str
    segments: list[TranscriptionSegment]
    usage: DurationUsage


class TranscriptEvent(Answer, kw_only=True):
    """An event of a stream."""


class TranscriptDelta(TranscriptEvent, kw_only=True):
    """More of the text."""

    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str


class TranscriptDone(TranscriptEvent, kw_only=True):
    """The last event: all of the text."""

    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    usage: TokenUsage
