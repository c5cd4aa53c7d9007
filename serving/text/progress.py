"""How far sequences in flight have come, for those who watch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequenceProgress:
    """One sequence in flight. `age_seconds` is the time since it arrived; lengths are in tokens.

    `cached_tokens` of the prompt came from the prefix cache, which is known from the first token on. `adapter` is the
    name of its LoRA adapter, None without one.
    """

    age_seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    adapter: str | None = None
