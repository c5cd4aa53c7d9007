"""A chat template of a tokenizer, and what is known about it."""

from functools import cached_property
from typing import Any

from jaxllm.serving.text.template_facts import TemplateFacts
from jaxllm.serving.text.template_trials import TemplateTrials


class ChatTemplate:
    """One template; what its source and trial renderings say is found out once. Safe to use from several threads."""

    def __init__(self, hf: Any, given: str | None) -> None:
        """`hf` is a tokenizer of `transformers`; `given` takes the place of its own template."""
        self._hf = hf
        self._given = given

    @property
    def text(self) -> str:
        """The source, or those of several templates; empty where there is none."""
        template = self._given or self._hf.chat_template or ""
        return template if isinstance(template, str) else "\n".join(template.values())

    @cached_property
    def source(self) -> TemplateFacts:
        """What the source says."""
        # Jinja's import takes longer than all else that is needed to generate without conversations.
        from jaxllm.serving.text.template_source import read_source

        return read_source(self.text)

    @cached_property
    def trials(self) -> TemplateTrials:
        """What trial renderings say."""
        return TemplateTrials(self.render, self.source)

    def render(self, messages: list[dict[str, Any]], **settings: Any) -> str:
        """The prompt of messages. Raises whatever the template raises."""
        text = self._hf.apply_chat_template(messages, chat_template=self._given, tokenize=False, **settings)
        assert isinstance(text, str)
        return text
