"""Fields that clients in use send beyond the interfaces served here, and that would be refused without being known.

They are ignored and named. Names are those of the documentation of each server or client.
"""

IN_BODIES = frozenset((
    # OpenRouter
    "models", "top_a",
))  # fmt: skip
"""Besides the messages, or the input, where only what looks like a misspelling is refused."""

INSIDE = frozenset((
    # LiteLLM, and answers of other servers that come back as messages
    "extra_content", "provider_specific_fields", "reasoning_details", "reasoning_items", "reasoning_signature",
    "signature",
    "thinking_blocks", "thought_signature",
    # Groq, LangChain, Copilot
    "annotations", "copilot_cache_control", "created_by", "end_turn", "executed_tools", "index",
    # Anthropic's
    "cache_control", "citations", "eager_input_streaming", "input_examples",
    # OpenAI's libraries, which put parsed text alongside the text; Codex
    "internal_chat_message_metadata_passthrough", "parsed", "parsed_arguments",
    # What frameworks keep with a message
    "additional_kwargs", "created_at", "id", "metadata", "response_metadata", "timestamp",
    # vLLM's answers that come back
    "token_ids",
))  # fmt: skip
"""In messages, parts, calls, tools and items."""
