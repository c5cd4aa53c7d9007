"""State that all routes share."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

from jaxllm.errors import ConfigError
from jaxllm.serving.http import errors
from jaxllm.serving.http.adapter_resolver import AdapterResolver
from jaxllm.serving.http.adapters import ServedAdapters
from jaxllm.serving.http.body.base import Ignored
from jaxllm.serving.http.body.ignored_fields import FieldPolicy
from jaxllm.serving.http.body.read import Bodies, ResolveModel
from jaxllm.serving.http.limits import AdmissionLimits, JsonLimits
from jaxllm.serving.http.shared_adapters import SharedAdapters
from jaxllm.serving.llm.async_llm import AsyncLLM, RunText
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.reply.registry import ReplyFormats
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.telemetry.shared_metrics import SharedMetrics
from jaxllm.serving.tenancy.access import Access
from jaxllm.serving.text.token_bytes import TokenBytes
from jaxllm.serving.text.tokenizer import Tokenizer
from jaxllm.version import __version__

if TYPE_CHECKING:
    from jaxllm.serving.http.media import ChatMedium
    from jaxllm.serving.http.sound import RequestSound
    from jaxllm.serving.telemetry.otlp import Tracing

_NO_PROCESSORS = Ignored("only logits processors read it, and this server has none (--logits-processors)", ({},))


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
    """Measurements of other API server processes, if there are others."""
    shared_adapters: SharedAdapters | None = None
    """The adapters of all API server processes, if there are others."""
    tracing: "Tracing | None" = None
    """Makes traces of requests, where that is asked for."""
    overloaded: str = ""
    """Why nothing new is taken for a while; empty where it is."""
    drain: Callable[[], None] | None = None
    """Has the server end well, as SIGTERM does; None where it is nobody's to end."""
    fingerprint: str = field(init=False)
    adapters: ServedAdapters = field(init=False)
    access: Access = field(init=False)
    replies: ReplyFormats = field(init=False)
    bodies: Bodies = field(init=False)
    limits: AdmissionLimits = field(init=False)
    media: "Mapping[str, ChatMedium]" = field(init=False)
    """What makes images and sounds of conversations ready, by the medium; only those that the model takes."""
    sound: "RequestSound | None" = field(init=False)
    """What makes text of the sound of requests; None where the model is not made for that."""
    chat_template: str = field(init=False)
    """Text of the operator's chat template, or else of the model's; empty where there is none."""

    def __post_init__(self) -> None:
        info, options = self.llm.info, self.options
        self.adapters = ServedAdapters(self.model_names, self.shared_adapters)
        tokenizer = self.llm.tokenizer
        self._token_bytes = None if tokenizer is None else TokenBytes(tokenizer)
        without_effect = {} if self.llm.config.output.logits_processors else {"vllm_xargs": _NO_PROCESSORS}
        template = None if tokenizer is None else tokenizer.template(self.llm.chat_template)
        fields = FieldPolicy(
            strict=options.strict_fields,
            ignore_unknown=options.ignore_unknown_fields,
            without_effect=without_effect,
            of_template=frozenset() if template is None else template.source.fields,
        )
        self.bodies = Bodies(JsonLimits.of(info), fields, self._resolver())
        self.limits = AdmissionLimits.of(info, self.llm.config, options)
        self.access = Access.of(options)
        self.media, self.sound = self._media()
        self.chat_template = "" if template is None else template.text
        render = None if template is None else template.render
        self.replies = ReplyFormats.of(options, self.chat_template, render)
        identity = (
            f"{__version__} {info.model} {info.dtype} {info.kv_cache_dtype} {info.device_kind} {info.num_devices}"
        )
        given = {"custom": options.fingerprint_value or "", "none": ""}
        self.fingerprint = given.get(
            options.fingerprint_mode, f"fp_{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
        )

    def _media(self) -> "tuple[Mapping[str, ChatMedium], RequestSound | None]":
        if getattr(self.llm.inputs, "images", None) is None and self.llm.info.sound is None:
            return {}, None
        # Most models take neither: starts are faster without the import.
        from jaxllm.serving.http.media import RequestMedia

        media = RequestMedia(self.options, self.llm, self.metrics)
        return media.of_chats, media.sound

    def close(self) -> None:
        """End the processes that decode images and sound."""
        for each in self.media.values():
            each.close()
        if self.sound is not None:
            self.sound.close()

    async def end_tracing(self) -> None:
        """Send the last traces, in a thread: for seconds, if their collector does not take them."""
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def _resolver(self) -> ResolveModel | None:
        """Finds adapters that requests name, where the operator allows it. Raises `ConfigError`."""
        options, model = self.options, self.llm.config.model
        if options.lora_resolver_dir is None and not options.lora_resolver_hf_repos:
            return None
        if not self.llm.info.max_loras:
            raise ConfigError(
                "lora_resolver_dir and lora_resolver_hf_repos: the engine takes no adapters; give --enable-lora as well"
            )
        return AdapterResolver(
            self.adapters,
            self.llm.add_lora,
            folder=options.lora_resolver_dir,
            repositories=options.lora_resolver_hf_repos,
            download_dir=model.download_dir,
            token=model.hf_token,
        ).resolve

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises an error of status 400 where there is none."""
        if self.llm.tokenizer is None:
            raise errors.no_tokenizer()
        return self.llm.tokenizer

    @property
    def token_bytes(self) -> TokenBytes:
        """The bytes of tokens. Raises as `tokenizer`."""
        if self._token_bytes is None:
            raise errors.no_tokenizer()
        return self._token_bytes

    def run_text_of(self, chat_template: str | None) -> RunText:
        """The runner of the work on a request's text: requests that bring a template wait for each other alone."""
        return self.llm.run_text if chat_template is None else self.llm.run_with_template

    def check_accepting(self) -> None:
        """Raise an error of status 503 when nothing new is taken."""
        if not self.accepting:
            raise errors.shutting_down()
        if self.overloaded:
            raise errors.overloaded(self.overloaded)


def server_of(request: Request) -> ServerState:
    """The state of the server that got this request."""
    server: ServerState = request.app.state.server
    return server
