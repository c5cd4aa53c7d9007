"""Fields that clients in use send beyond the interfaces served here.

They are known by name, and ignored and named where other unknown fields are refused. None of them changes the prompt,
the form of the answer or its length. Some change how it is found: how tokens are drawn, whether and how long the model
thinks, whether the provider searches the web; these too are ignored, as most clients send them by default. A field that
changes more, such as llama.cpp's `grammar`, is refused like a misspelling. Names are those of the documentation of each
server or client.
"""

IN_BODIES = frozenset((
    # llama.cpp
    "adaptive_decay", "adaptive_target", "backend_sampling", "cache_prompt",
    "dry_allowed_length", "dry_base", "dry_multiplier", "dry_penalty_last_n", "dry_sequence_breakers",
    "dynatemp_exponent", "dynatemp_range", "id_slot", "ignore_eos_token", "min_keep", "mirostat", "mirostat_eta",
    "mirostat_tau", "n_discard", "n_indent", "n_keep",
    "n_probs", "parse_tool_calls", "penalize_nl", "post_sampling_probs",
    "reasoning_format", "repeat_last_n", "repeat_penalty", "return_progress", "samplers", "slot_id", "t_max_predict_ms",
    "tfs_z", "timings_per_token", "top_n_sigma", "typical_p", "xtc_probability", "xtc_threshold",
    # Ollama, LM Studio
    "draft_model", "keep_alive", "num_ctx", "think", "ttl",
    # OpenRouter
    "models", "plugins", "provider", "reasoning", "route", "top_a", "transforms", "usage",
    # SGLang, TensorRT-LLM
    "no_stop_trim", "return_hidden_states", "rid", "separate_reasoning", "stream_reasoning",
    # Mistral, Groq, xAI, DeepSeek, Z.ai, MiniMax, DashScope
    "do_sample", "enable_search", "incremental_output", "prompt_mode", "random_seed", "reasoning_split",
    "reasoning_summary", "result_format", "safe_prompt", "search_options", "search_parameters", "thinking",
    "thinking_budget", "tool_stream", "user_id",
    # Text Generation Inference
    "decoder_input_details", "details", "return_full_text", "watermark",
    # OpenAI's, sent to each of its routes
    "metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "verbosity",
    # Embeddings of Cohere and NVIDIA: models with prompts of their own read it at /v2/embed
    "input_type",
    # Anthropic's betas, and its interface on Bedrock and Vertex
    "anthropic_beta", "anthropic_version", "betas", "cache_control",
    # Codex, LiteLLM and their like
    "client_metadata", "context_management", "conversation_id", "litellm_call_id", "litellm_metadata",
    "litellm_session_id", "litellm_trace_id", "tags", "trace_id",
    # Query parameters: Azure's, Anthropic's
    "api-version", "beta",
))  # fmt: skip
"""Beside the messages, or the input."""

INSIDE = frozenset((
    # LiteLLM, and answers of other servers that come back as messages
    "extra_content", "provider_specific_fields", "reasoning_details", "reasoning_items", "reasoning_signature",
    "signature",
    "thinking_blocks", "thought_signature",
    # Groq, LangChain, Copilot
    "annotations", "copilot_cache_control", "created_by", "end_turn", "executed_tools", "index",
    # Anthropic's
    "cache_control", "citations", "eager_input_streaming", "input_examples",
    # OpenAI's libraries, which put parsed text beside the text; Codex
    "internal_chat_message_metadata_passthrough", "parsed", "parsed_arguments",
    # What frameworks keep with a message
    "additional_kwargs", "created_at", "id", "metadata", "response_metadata", "timestamp",
    # vLLM's answers that come back
    "token_ids",
))  # fmt: skip
"""In messages, parts, calls, tools and items."""
