"""Options of sound in requests, as in `jaxllm.config`."""

from dataclasses import dataclass

from jaxllm.config import Section, option


@dataclass(frozen=True, kw_only=True)
class AudioOptions(Section):
    """How large a file of sound may be, and how many there may be."""

    audio_fetch_timeout: float = option(
        10.0, "Seconds in which a sound must be fetched, redirects included.", minimum=0.01, maximum=600.0
    )
    max_audios_per_prompt: int = option(
        16, "Maximum number of sounds in a request; 0 allows none.", minimum=0, maximum=1024
    )
    max_audio_bytes: int = option(25 << 20, "Maximum size of a file of sound in bytes.", minimum=1024)
    max_audio_seconds: int = option(600, "Maximum length of sound in seconds.", minimum=1, maximum=24 * 3600)
