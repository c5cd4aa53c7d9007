"""Fields of other servers whose names look like misspellings of ours."""

FOREIGN = frozenset(
    {
        "cache_control",
        "conversation_id",
        "models",
        "reasoning_format",
        "reasoning_summary",
        "repeat_penalty",
        "top_a",
    }
)
"""llama.cpp's `repeat_penalty`, OpenRouter's `models` and `top_a`, Groq's `reasoning_format`, and such."""
