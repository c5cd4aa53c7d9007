"""A chat template of a tokenizer, and what is known about it."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from jaxllm.serving.text.templates import rendering
from jaxllm.serving.text.templates.facts import TemplateFacts
from jaxllm.serving.text.templates.trials import TemplateTrials

Apply = Callable[[str, rendering.Conversation], str]
"""Renders a template, within limits."""

_LONGEST_SOURCE: Final = 2**17
"""Characters of a template whose source is looked at; longer ones are only tried."""


class ChatTemplate:
    """One template; what its source and trial renderings say is found out once. Safe to use from several threads."""

    def __init__(self, hf: Any, given: str | None, apply: Apply = rendering.apply) -> None:
        """`hf` is a tokenizer of `transformers`; `given` takes the place of its own template; `apply` renders."""
        self._hf = hf
        self._given = given
        self._apply = apply

    @property
    def text(self) -> str:
        """The source, or those of several templates; empty where there is none."""
        template = self._given or self._hf.chat_template or ""
        return template if isinstance(template, str) else "\n".join(template.values())

    @cached_property
    def source(self) -> TemplateFacts:
        """Facts from the source."""
        # Jinja is imported when it is needed, as in `rendering.apply`.
        from jaxllm.serving.text.templates.source import read_source

        return read_source(self.text) if len(self.text) <= _LONGEST_SOURCE else TemplateFacts()

    @cached_property
    def trials(self) -> TemplateTrials:
        """Facts from trial renderings."""
        return TemplateTrials(self.render, self.source)

    def render(
        self,
        messages: list[dict[str, Any]],
        /,
        *,
        tools: list[Any] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt of messages. Raises whatever the template raises."""
        conversation = rendering.Conversation(
            messages=messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continues=continue_final_message,
            variables={**self._hf.special_tokens_map, **variables},
        )
        return self._apply(rendering.chosen(self._hf.chat_template, self._given, tools), conversation)
