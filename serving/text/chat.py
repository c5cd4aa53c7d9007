"""Messages to prompt text, through the tokenizer's chat template."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxllm.errors import ConfigError, QueueFullError, RequestError, nearest, quoted, shortened
from jaxllm.serving.options.named_templates import NAMED_TEMPLATES, named_template
from jaxllm.serving.text.control_tokens import Disguise
from jaxllm.serving.text.messages import Conversation, normalise_messages
from jaxllm.serving.text.stand_ins import StandIns, Written
from jaxllm.serving.text.templates import rendering
from jaxllm.serving.text.templates.chat_template import Apply
from jaxllm.serving.text.templates.fitting import CONTENT_FORMATS, fit_messages, fit_tools
from jaxllm.serving.text.tokenizer import Tokenizer


def render_chat(
    tokenizer: Tokenizer,
    messages: Conversation,
    *,
    chat_template: str | None = None,
    chat_template_content_format: str = "auto",
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    allow_special_tokens: bool = False,
    media: Collection[str] = (),
    written: Written = MappingProxyType({}),
    apply: Apply = rendering.apply,
) -> str:
    """The prompt text of a conversation; encode it without adding special tokens, the template writes them.

    `messages` are OpenAI's: role, content (text or a list of text parts), tool calls. `chat_template` (Jinja text)
    takes the place of the tokenizer's own; `chat_template_content_format` is one of `CONTENT_FORMATS`. Where messages,
    tools or documents have the text of a special token, the result is a `ChatPrompt`, and `Tokenizer.encode` encodes
    that text as text; with `allow_special_tokens` it is the token. Parts whose type is one of `media`, such
    as "image", stand for a medium each; where the template has no place for one, what is `written` comes before the
    text. `apply` renders; a `TemplateSandbox` does so for templates that nobody has looked at. Raises `RequestError`
    for messages or a template that do not work.
    """
    if add_generation_prompt and continue_final_message:
        raise RequestError(
            "continue_final_message=True requires add_generation_prompt=False, because the final message is not "
            "finished",
            "continue_final_message",
        )
    if chat_template is None and not tokenizer.hf.chat_template:
        raise RequestError(
            "this model's tokenizer has no chat template: give one with chat_template=... (--chat-template): "
            f"a file, Jinja text, or one of {', '.join(NAMED_TEMPLATES)}; or use generate() (/v1/completions) with "
            "plain text",
            "chat_template",
        )
    if chat_template_content_format not in CONTENT_FORMATS:
        raise RequestError(
            f"chat_template_content_format={quoted(chat_template_content_format)}: must be one of "
            f"{', '.join(CONTENT_FORMATS)}",
            "chat_template_content_format",
        )
    template = tokenizer.template(chat_template, apply)
    listed = fit_tools(tools, template) if tools else None
    normal = normalise_messages(messages, media=media)
    stand_ins = StandIns(written)
    plain = fit_messages(
        normal, template, chat_template_content_format, tools=listed is not None, word_of=stand_ins.word
    )
    kwargs = dict(chat_template_kwargs or {})
    for name in rendering.OWN & kwargs.keys():
        raise RequestError(f"chat_template_kwargs.{name}: not a template argument", "chat_template_kwargs")
    disguise = None
    if not allow_special_tokens and tokenizer.control.concerns([plain, listed, kwargs.get("documents")]):
        disguise = Disguise(tokenizer.control, template.text)
        plain, listed = disguise.hide_in_messages(plain), disguise.hide(listed)
        if "documents" in kwargs:
            kwargs["documents"] = disguise.hide(kwargs["documents"])
    try:
        text = template.render(
            plain,
            tools=listed,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **kwargs,
        )
    except QueueFullError:
        raise
    # A template is a program of somebody else's: it raises what it likes.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = reason if disguise is None else disguise.reveal(reason)
        raise RequestError(f"the chat template rejects these messages: {shortened(reason)}", "messages") from error
    return stand_ins.write(text if disguise is None else disguise.prompt(text), tokenizer.control)


def load_chat_template(name: str) -> str:
    """A chat template given by a name of `NAMED_TEMPLATES`, by a file, or as Jinja text.

    A file with such a name is given as `./name`. Raises `ConfigError` when it is none of these.
    """
    if "{" in name or "\n" in name:
        return name
    named = named_template(name)
    if named is not None:
        return named
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"chat template {name!r} is neither Jinja text nor a readable file ({error}), nor one of "
            f"{', '.join(NAMED_TEMPLATES)}{nearest(name, NAMED_TEMPLATES)}"
        ) from None
