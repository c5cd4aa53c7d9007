"""Embeddings and scores in a script: what the methods of `LLM` do with a pooling engine."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from jaxllm.config.engine_info import PoolingInfo
from jaxllm.errors import RequestError
from jaxllm.pooling.params import PoolingParams
from jaxllm.serving.llm.offline import OfflineRuns
from jaxllm.serving.llm.pooling_llm_engine import PoolingLLMEngine
from jaxllm.serving.llm.progress import UseTqdm
from jaxllm.serving.pooling.inputs import GivenPrompt, TextPair
from jaxllm.serving.pooling.outputs import PoolingRequestOutput, ScoringRequestOutput
from jaxllm.serving.pooling.retrieval import retrieval_template
from jaxllm.serving.pooling.scoring import Scoring, crosses
from jaxllm.serving.pooling.sides import JUDGE_TEMPLATE, Side, Writer
from jaxllm.serving.text.adapters import GivenAdapters
from jaxllm.serving.text.chat import render_chat
from jaxllm.serving.text.messages import IMAGE, VIDEO, normalise_messages
from jaxllm.serving.text.prompts import ParsedPrompt

Params = PoolingParams | Sequence[PoolingParams] | None


class OfflinePooling:
    """One engine, whose requests `runs` runs."""

    def __init__(self, engine: PoolingLLMEngine, runs: OfflineRuns, use_tqdm: UseTqdm) -> None:
        """`use_tqdm` shows a progress bar, or is a function that makes one."""
        self._engine, self._runs, self._use_tqdm = engine, runs, use_tqdm

    @property
    def _pooling(self) -> PoolingInfo:
        pooling = self._engine.engine.info.pooling
        assert pooling is not None
        return pooling

    def pool(
        self, prompts: Sequence[GivenPrompt], params: Params, task: str | None, lora_request: GivenAdapters = None
    ) -> list[PoolingRequestOutput]:
        """Results of texts; `task` is that of all requests, where their parameters do not name one themselves.

        `lora_request` is one adapter for all, or a list with one or None for each.
        """
        given = PoolingParams() if params is None else params
        if isinstance(given, PoolingParams):
            each: PoolingParams | list[PoolingParams] = _with_task(given, task)
        else:
            each = [_with_task(one, task) for one in given]
        names = self._runs.names(len(prompts))
        requests = self._engine.inputs.prepare(prompts, each, names, lora_request=lora_request)
        return self._runs.run(self._engine, requests, self._use_tqdm)

    def score(
        self,
        first: Any,
        second: Any,
        params: PoolingParams | None,
        chat_template: str | None = None,
        lora_request: GivenAdapters = None,
    ) -> list[ScoringRequestOutput]:
        """Scores of pairs of texts, see `LLM.score`."""
        sides, others = self._sides("text_1", first), self._sides("text_2", second)
        scoring = Scoring(self._pooling, sides, others, params, self._writer(chat_template))
        prompts = scoring.prompts
        if chat_template is not None:
            prompts = [self._rendered(pair, chat_template) for pair in prompts]
        return scoring.scores(self.pool(prompts, scoring.params, None, lora_request))

    def _sides(self, name: str, given: Any) -> list[str | Side]:
        """Texts, and parts with their images: {"content": [...]}, one or several. Raises `RequestError`."""
        several = [given] if isinstance(given, (str, Mapping)) else given
        if not isinstance(several, (list, tuple)) or not any(isinstance(each, Mapping) for each in several):
            return [*texts(name, given)]
        return [self._side(name, each) if isinstance(each, Mapping) else texts(name, each)[0] for each in several]

    def _side(self, name: str, given: Mapping[str, Any]) -> str | Side:
        content, media = given.get("content"), self._engine.chat_media
        if set(given) != {"content"} or not isinstance(content, (list, tuple)) or not content:
            raise RequestError(f"{name}: expected text or {{'content': [...]}} with parts", name)
        known = frozenset() if media is None else media.media
        messages: list[Mapping[str, Any]] = [{"role": "user", "content": content}]
        taken: dict[str, list[Any]] = {}
        if media is not None:
            messages, taken = media.take(messages, None)
        (message,) = normalise_messages(messages, media=known)
        if not taken:
            return "\n".join(part["text"] for part in message["content"])
        return Side(message["content"], [*taken.get(IMAGE, ()), *taken.get(VIDEO, ())])

    def _writer(self, chat_template: str | None) -> Writer | None:
        """What writes prompts of sides with images, by this template if one is given; None where there may be none."""
        tokenizer, media, images = self._engine.tokenizer, self._engine.chat_media, self._engine.inputs.images
        if tokenizer is None or media is None or images is None:
            return None
        judges = crosses(self._pooling)
        own = JUDGE_TEMPLATE if judges else retrieval_template(images.model)
        is_own = chat_template is None and own is not None
        render = partial(
            render_chat,
            tokenizer,
            chat_template=own if is_own else chat_template,
            chat_template_content_format="openai" if is_own else "auto",
            add_generation_prompt=False,
            media=media.media,
        )
        roles = ("query", "document") if judges or is_own else ("user", "user")
        return Writer(render, roles, of_texts=is_own and not judges)

    def _rendered(self, pair: GivenPrompt, chat_template: str) -> GivenPrompt:
        """The text that a template makes of a pair, with the roles that vLLM gives them."""
        tokenizer = self._engine.tokenizer
        if isinstance(pair, ParsedPrompt):
            return pair
        if not isinstance(pair, TextPair):
            raise RequestError(
                "chat_template does not apply to embedding models, which encode each text separately", "chat_template"
            )
        if tokenizer is None:
            raise RequestError("chat_template needs a tokenizer, but skip_tokenizer_init is set", "chat_template")
        messages = [{"role": "query", "content": pair.first}, {"role": "document", "content": pair.second}]
        return render_chat(
            tokenizer, messages, chat_template=chat_template, add_generation_prompt=False, allow_special_tokens=True
        )


def texts(name: str, given: Any) -> list[str]:
    """One text or several as a list. Raises `RequestError` about `name` for anything else."""
    items = [given] if isinstance(given, str) else list(given) if isinstance(given, (list, tuple)) else None
    if items is None or not all(isinstance(item, str) for item in items):
        raise RequestError(f"{name}: expected a string or a list of strings", name)
    return items


def _with_task(params: Any, task: str | None) -> PoolingParams:
    if not isinstance(params, PoolingParams):
        raise RequestError(f"pooling_params: expected PoolingParams, got {type(params).__name__}", "pooling_params")
    if task is None or params.task == task:
        return params
    if params.task is not None:
        raise RequestError(f"task={params.task!r} in pooling_params contradicts the requested task {task!r}", "task")
    return PoolingParams(**{**{name: getattr(params, name) for name in params.__struct_fields__}, "task": task})
