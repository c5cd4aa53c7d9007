"""How models that search pages as pictures read these and questions, as their processors in transformers write them."""

import json
from collections.abc import Callable, Mapping
from typing import Final

from jaxllm.serving.media.checkpoint import PROCESSOR, TOKENIZER, ImageModel, class_name, token_texts
from jaxllm.serving.media.image_processors.settings import Settings

_NUM_BUFFERS: Final = 10
"""Padding after a question, which the models were trained to think in."""


def retrieval_template(model: ImageModel) -> str | None:
    """A chat template for messages of the roles query and document, or None for models without such a form.

    Raises `ConfigError` for prefixes that are no text.
    """
    make = _MADE.get(class_name(model.files))
    if make is None:
        return None
    return make(Settings(model.files[PROCESSOR], PROCESSOR), token_texts(model.files[TOKENIZER]))


def _colqwen2(settings: Settings, tokens: Mapping[str, str]) -> str:
    page = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
    end = tokens.get("pad_token", "<|endoftext|>") * _NUM_BUFFERS + "\n"
    return _template(settings.text("visual_prompt_prefix", page), settings.text("query_prefix", "Query: "), end)


def _colpali(settings: Settings, tokens: Mapping[str, str]) -> str:
    # What PaliGemma has after images and at the end comes with these.
    page = tokens.get("image_token", "<image>") + settings.text("visual_prompt_prefix", "Describe the image.")
    begin = tokens.get("bos_token", "<bos>") + settings.text("query_prefix", "Question: ")
    return _template(page, begin, tokens.get("pad_token", "<pad>") * _NUM_BUFFERS + "\n")


def _template(page: str, begin: str, end: str) -> str:
    """Pictures become `page`, questions have a beginning and an end, and other texts are as they are."""
    page, begin, end = (json.dumps(text, ensure_ascii=False) for text in (page, begin, end))
    return (
        "{%- for message in messages -%}"
        "{%- set has_text = message['content'] | selectattr('type', 'equalto', 'text') | list | length > 0 -%}"
        "{%- set asks = message['role'] == 'query' and has_text -%}"
        f"{{%- if asks -%}}{{{{- {begin} -}}}}{{%- endif -%}}"
        "{%- for part in message['content'] -%}"
        f"{{%- if part['type'] == 'image' -%}}{{{{- {page} -}}}}"
        "{%- else -%}{{- part['text'] -}}{%- endif -%}{%- endfor -%}"
        f"{{%- if asks -%}}{{{{- {end} -}}}}{{%- endif -%}}"
        "{%- endfor -%}"
    )


_MADE: Final[Mapping[str, Callable[[Settings, Mapping[str, str]], str]]] = {
    "ColPaliProcessor": _colpali,
    "ColQwen2Processor": _colqwen2,
}
"""By processor_class."""
