"""Where an engine is used, as vLLM's programs tell it: accepted, and told to nobody."""

from enum import StrEnum

__all__ = ["UsageContext"]


class UsageContext(StrEnum):
    """Where an engine is used."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"
