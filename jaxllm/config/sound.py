"""Options of sound."""

from dataclasses import dataclass

from jaxllm.config.option import Section, option


@dataclass(frozen=True, kw_only=True)
class SoundOptions(Section):
    """Sound."""

    sound_windows: int | None = option(
        None,
        "Windows of sound whose keys and values the devices hold: those of all requests that run, and others, which "
        "need not be encoded again. Default: max_num_seqs, or fewer where memory does not hold as many.",
        minimum=1,
    )
