"""Several conversations in one request."""

from typing import Annotated, Any

from jaxllm.serving.http.body.base import Refused
from jaxllm.serving.http.body.bounds import MOST_MESSAGES, at_most
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.generation import OneAnswer
from jaxllm.serving.openai.protocol.messages import Message

_NO_TOOLS = "a batch does not support tools; see /v1/chat/completions"
_WHOLE = "a batch cannot be streamed; see /v1/chat/completions"


class BatchChatRequest(OneAnswer, ChatCompletionRequest, kw_only=True):
    """Conversations that are answered each on its own, all with the same settings."""

    messages: Annotated[  # type: ignore[assignment]
        list[Annotated[list[Message], at_most(MOST_MESSAGES, minItems=1)]], at_most(1024, minItems=1)
    ]
    """The conversations."""

    stream: Annotated[Any, Refused(_WHOLE, (False,))] = None
    tools: Annotated[Any, Refused(_NO_TOOLS, ([],))] = None
    tool_choice: Annotated[Any, Refused(_NO_TOOLS, ("none",))] = None
    functions: Annotated[Any, Refused(_NO_TOOLS, ([],))] = None
    function_call: Annotated[Any, Refused(_NO_TOOLS, ("none",))] = None
    prompt_logprobs: Annotated[Any, Refused(_WHOLE)] = None
    return_prompt_text: Annotated[Any, Refused(_WHOLE, (False,))] = None

    def single(self, index: int) -> ChatCompletionRequest:
        """The request for one of the conversations."""
        fields = {name: getattr(self, name) for name in ChatCompletionRequest.__struct_fields__}
        return ChatCompletionRequest(**{**fields, "messages": self.messages[index]})
