"""Two little tokenizers, trained on the spot (byte-level BPE, and BPE with byte fallback), and a scripted engine."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from jaxllm.config.engine_info import EngineInfo
from jaxllm.errors import RequestError
from jaxllm.requests.outputs import EngineOutput, TokenLogprobs
from jaxllm.requests.request import Request
from jaxllm.serving.text.tokenizer import Tokenizer

CORPUS = [
    "The cat sat on the mat. The dog ran to the cat, and the cat ran away.",
    "Once upon a time there was a little dog who liked to eat apples and to sing.",
    '{"name": "Ada", "age": 7} 1 + 2 = 3, 10 + 20 = 30',
    "emoji 🙂🙃 and 日本語のテキスト, ελληνικά, е́ and é",
]
SPECIAL = ["<unk>", "<|start|>", "<|end|>", "<pad>"]
TEMPLATE = (
    "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('bad role ' ~ m.role) }}{% endif %}"
    "<|start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% if thinking %}<think>{% endif %}{% endif %}"
)


def _save(backend: Backend, folder: Path, *, template: str | None) -> Path:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|end|>",
        pad_token="<pad>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def byte_level_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return _save(backend, tmp_path_factory.mktemp("byte-level"), template=TEMPLATE)


@pytest.fixture(scope="session")
def byte_fallback_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    backend.train_from_iterator(
        CORPUS[:3], trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    )
    # The byte tokens are ordinary tokens of the model, not special ones.
    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    return _save(Backend.from_str(json.dumps(state)), tmp_path_factory.mktemp("byte-fallback"), template=None)


@pytest.fixture(scope="session")
def tokenizer(byte_level_folder: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_folder)


@pytest.fixture(scope="session")
def fallback_tokenizer(byte_fallback_folder: Path) -> Tokenizer:
    return Tokenizer.load(byte_fallback_folder)


def engine_info(**known: Any) -> EngineInfo:
    """The description of a small engine, with the values in `known` in place of the defaults."""
    some: dict[str, Any] = {
        "model": "scripted", "model_folder": ".", "vocab_size": 400, "eos_token_ids": (9,), "max_model_len": 32,
        "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_logprobs": 20, "num_pages": 33, "block_size": 16,
        "enable_prefix_caching": True, "dtype": "float32", "device_kind": "cpu", "num_devices": 1, "num_shapes": 4,
    }  # fmt: skip
    return EngineInfo(**{**some, **known})


class ScriptedEngine:
    """Stands in for the engine: continues each request with given token ids, one per step.

    `script` maps a request to the tokens it would generate for ever; end tokens, stop tokens and lengths are obeyed
    as the engine would. The last alternative of logprobs is always the chosen token's successor.
    """

    def __init__(
        self, script: Callable[[Request], Iterable[int]], *, tokens_per_step: int = 1, refuse: str = ""
    ) -> None:
        self._script = script
        self._per_step = tokens_per_step
        self._refuse = refuse
        self.running: dict[str, tuple[Request, Iterator[int]]] = {}
        self.added: list[Request] = []
        self.finished: list[tuple[str, str]] = []
        self.aborted: list[str] = []
        self.closed = False
        self.steps = 0
        self.on_step: Callable[[], None] = lambda: None
        self.info = engine_info()

    def add_request(self, request: Request) -> None:
        if request.request_id == self._refuse:
            raise RequestError("refused", "prompt")
        self.added.append(request)
        self.running[request.request_id] = (request, iter(self._script(request)))

    def abort_request(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if self.running.pop(request_id, None) is not None:
                self.aborted.append(request_id)

    def finish_request(self, request_id: str, stop_reason: str) -> None:
        self.finished.append((request_id, stop_reason))
        self.running.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def reset_prefix_cache(self) -> bool:
        return not self.running

    def close(self) -> None:
        self.closed = True

    def step(self) -> list[EngineOutput]:
        self.steps += 1
        self.on_step()
        outputs = [self._advance(request, tokens) for request, tokens in self.running.values()]
        for output in outputs:
            if output.finished:
                del self.running[output.request_id]
        return outputs

    def _advance(self, request: Request, tokens: Iterator[int]) -> EngineOutput:
        params, new = request.params, list[int]()
        output = EngineOutput(request.request_id, new, num_cached_tokens=5)
        if params.prompt_logprobs is not None and not request.output_token_ids:
            rest = request.prompt_token_ids[1:].tolist()
            output.prompt_logprobs = [None, *(self._logprobs(token, params.prompt_logprobs) for token in rest)]
        while len(new) < self._per_step and output.finish_reason is None:
            token = next(tokens)
            new.append(token)
            request.output_token_ids.append(token)
            if token in request.eos_token_ids and not params.ignore_eos:
                output.finish_reason = "stop"
            elif token in (params.stop_token_ids or ()):
                output.finish_reason, output.stop_reason = "stop", token
            elif len(request.output_token_ids) == params.max_tokens:
                output.finish_reason = "length"
        if params.logprobs is not None:
            output.logprobs = [self._logprobs(token, params.logprobs) for token in new]
        return output

    def _logprobs(self, token: int, count: int) -> TokenLogprobs:
        """The chosen token is the second most likely; its probability falls with its id."""
        top = [token + 1, token, token + 2][:count]
        return TokenLogprobs(token, -0.5 - token / 1000, 2, top, [-0.1, -0.5 - token / 1000, -2.0][:count])


@pytest.fixture(scope="session")
def scripted_engine() -> type[ScriptedEngine]:
    return ScriptedEngine
