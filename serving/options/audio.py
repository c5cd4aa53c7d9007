"""Options of sound in requests, as in `jaxllm.config`."""

from dataclasses import dataclass

from jaxllm.config import Section, option


@dataclass(frozen=True, kw_only=True)
class AudioOptions(Section):
    """How large a file of sound may be."""

    max_audio_bytes: int = option(25 << 20, "Maximum size of a file of sound in bytes.", minimum=1024)
    max_audio_seconds: int = option(600, "Maximum length of sound in seconds.", minimum=1, maximum=24 * 3600)
