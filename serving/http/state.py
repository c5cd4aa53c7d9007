"""What all routes share."""

import hashlib
from dataclasses import dataclass, field

from starlette.requests import Request

from jaxllm.errors import RequestError
from jaxllm.serving.http import errors
from jaxllm.serving.http.body.ignored_fields import FieldPolicy
from jaxllm.serving.http.body.large_bodies import LargeBodies
from jaxllm.serving.http.limits import JsonLimits
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.reply.registry import ReplyFormats
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.telemetry.shared_metrics import SharedMetrics
from jaxllm.serving.tenancy.access import Access
from jaxllm.serving.text.chat import load_chat_template
from jaxllm.serving.text.token_bytes import TokenBytes
from jaxllm.serving.text.tokenizer import Tokenizer
from jaxllm.version import __version__


@dataclass(kw_only=True)
class ServerState:
    """The engine's client, the options, and the names of the model; found as `app.state.server`.

    While `accepting` is false, the server is not ready, and generates nothing new. `created` is when it started, in
    seconds since 1970.
    """

    llm: AsyncLLM
    options: ServerOptions
    metrics: Metrics
    model_names: tuple[str, ...]
    accepting: bool
    created: int
    shared_metrics: SharedMetrics | None = None
    """What other API server processes have measured, if there are others."""
    fields: FieldPolicy = field(init=False)
    token_bytes: TokenBytes = field(init=False)
    fingerprint: str = field(init=False)
    access: Access = field(init=False)
    replies: ReplyFormats = field(init=False)
    bodies: LargeBodies = field(init=False)
    _own_template: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.fields = FieldPolicy(strict=self.options.strict_fields)
        self.token_bytes = TokenBytes(self.tokenizer)
        self.bodies = LargeBodies(JsonLimits.of(self.llm.info))
        self.access = Access.of(self.options)
        if self.options.chat_template is not None:
            self._own_template = load_chat_template(self.options.chat_template)
        self.replies = ReplyFormats.choose(
            self.options.tool_call_parser, self.options.reasoning_parser, self.chat_template(None)
        )
        info = self.llm.info
        identity = f"{__version__} {info.model} {info.dtype} {info.device_kind} {info.num_devices}"
        self.fingerprint = f"fp_{hashlib.sha256(identity.encode()).hexdigest()[:10]}"

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        assert self.llm.tokenizer is not None
        return self.llm.tokenizer

    @property
    def most_sequences(self) -> int:
        """Most sequences that may run and wait at once, so also of one request."""
        return self.llm.info.max_num_seqs + self.options.max_queued_requests

    def chat_template(self, given: str | None) -> str:
        """Text of the chat template that a request would use, empty where there is none."""
        for template in (given, self._own_template, self.tokenizer.hf.chat_template):
            if isinstance(template, str):
                return template
        return ""

    def model_name(self, asked: str | None) -> str:
        """The name to answer with. Raises an error of status 404 for one that is not served."""
        if asked is None:
            return self.model_names[0]
        if asked not in self.model_names:
            raise errors.unknown_model(asked, self.model_names)
        return asked

    def check_accepting(self) -> None:
        """Raise an error of status 503 when nothing new is taken."""
        if not self.accepting:
            raise errors.shutting_down()

    def check_template(self, template: str | None) -> None:
        """Raise `RequestError` for a request with a chat template of its own, unless they are trusted."""
        if template is not None and not self.options.trust_request_chat_template:
            raise RequestError(
                "chat_template: requests may not bring templates, which are programs; the server allows it with "
                "--trust-request-chat-template",
                "chat_template",
            )


def server_of(request: Request) -> ServerState:
    """The state of the server that got this request."""
    server: ServerState = request.app.state.server
    return server
