"""Options of what requests may ask for and get, as in `jaxllm.config`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.config import Section, option
from jaxllm.serving.options.named_templates import NAMED_TEMPLATES


@dataclass(frozen=True, kw_only=True)
class APIOptions(Section):
    """Names, fields and contents of requests and responses."""

    served_model_name: tuple[str, ...] = option(
        (), "Names that requests may use for the model; responses use the first. Default: the model as given."
    )
    skip_tokenizer_init: bool = option(
        False,
        "Load no tokenizer: serve token IDs in and out, at /inference/v1/generate. Requests that need text are "
        "rejected. See docs/token_ids.md.",
    )
    strict_fields: bool = option(
        False,
        "Reject requests that contain unknown fields, or known fields without effect, instead of ignoring these "
        "fields.",
    )
    ignore_unknown_fields: bool = option(
        False, "Also ignore unknown fields that look like misspellings, and unknown fields in nested objects."
    )
    return_tokens_as_token_ids: bool = option(False, "Show tokens in logprobs as token_id:NUMBER instead of text.")
    enable_force_include_usage: bool = option(False, "Include usage in every chunk of a stream and in a final chunk.")
    enable_per_request_metrics: bool = option(
        False,
        "Return a request's timings as `metrics` in the response (of a stream: in the final usage chunk). Applies to "
        "chats and completions with a single choice.",
    )
    enable_tokenizer_info_endpoint: bool = option(
        False, "Enable /tokenizer_info, which returns the tokenizer's settings."
    )
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = option(
        "full",
        "system_fingerprint in responses: a digest of version, model and devices ('full' and 'hash'), "
        "--fingerprint-value ('custom'), or an empty string ('none').",
    )
    fingerprint_value: str | None = option(None, "Value of system_fingerprint with --fingerprint-mode custom.")


@dataclass(frozen=True, kw_only=True)
class ChatOptions(Section):
    """Chat templates, tool calls and reasoning."""

    chat_template: str | None = option(
        None,
        f"Chat template to use instead of the model's: a file, Jinja text, or one of {', '.join(NAMED_TEMPLATES)}.",
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = option(
        "auto",
        "Form in which the chat template receives message contents: as the client sent them if the template supports "
        "it (auto), always as a string (string), or always as a list of parts (openai).",
    )
    allow_special_tokens_in_content: bool = option(
        False, "Encode the text of a special token in a chat message, such as <|im_end|>, as that token."
    )
    trust_request_chat_template: bool = option(False, "Allow requests to bring their own chat template.")
    default_chat_template_kwargs: Mapping[str, Any] | None = option(
        None, "Default arguments of the chat template; a request's chat_template_kwargs override them."
    )
    tool_call_parser: str | None = option(
        None,
        "Format of the model's tool calls: a name from docs/tools.md, or a class as module:attribute. Default: "
        "detected from the chat template.",
    )
    reasoning_parser: str | None = option(
        None,
        "Format of the model's reasoning: a name from docs/reasoning.md, or a class as module:attribute. Default: "
        "detected from the chat template.",
    )
    tool_parser_plugin: str | None = option(
        None, "Python file with custom tool-call formats: a dictionary TOOL_FORMATS from names to classes."
    )
    reasoning_parser_plugin: str | None = option(
        None, "Python file with custom reasoning formats: a dictionary REASONING_FORMATS from names to classes."
    )
    reasoning_config: Mapping[str, Any] | None = option(
        None,
        "Settings of reasoning, as JSON: reasoning_parser, reasoning_start_str and reasoning_end_str (the text that "
        "ends reasoning once thinking_token_budget is exhausted). See docs/reasoning.md.",
    )
    exclude_tools_when_tool_choice_none: bool = option(
        False, "Omit tools from the prompt of requests with tool_choice='none'."
    )
    reasoning_effort_map: Mapping[str, Any] | None = option(
        None,
        'Replacements for requested reasoning efforts, as JSON, for templates that support fewer: {"medium": "low"}.',
    )
    response_role: str = option("assistant", "Role of the messages that the model writes.")


@dataclass(frozen=True, kw_only=True)
class AdapterOptions(Section):
    """LoRA adapters that clients may use, load and unload."""

    lora_modules: tuple[str, ...] = option(
        (),
        'LoRA adapters to serve from the start, as NAME=FOLDER or JSON {"name", "path", "base_model_name"}; '
        "requests ask for one by its name as model. Needs --enable-lora.",
    )
    lora_dir: str | None = option(
        None,
        "Folder with adapters, which clients may then load and unload (POST /v1/load_lora_adapter); others are "
        "rejected. Default: clients load none.",
    )
    lora_resolver_dir: str | None = option(
        None,
        "Folder with adapters that requests may name as model without loading them: NAME is FOLDER/NAME. Default: "
        "none.",
    )
    lora_resolver_hf_repos: tuple[str, ...] = option(
        (),
        "Hub repositories (organization/name) with adapters that requests may name as model, also as "
        "organization/name/folder; the server downloads them when they are first asked for, unless HF_HUB_OFFLINE is "
        "set.",
    )
