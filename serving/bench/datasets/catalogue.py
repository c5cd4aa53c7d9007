"""The requests that the options ask for."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Literal, TypeVar

import numpy as np

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.datasets import files
from jaxllm.serving.bench.datasets.request import LoadRequest
from jaxllm.serving.bench.datasets.sonnet import sonnet
from jaxllm.serving.bench.datasets.synthetic import Vocabulary, prefix_repetition, random_prompts, random_requests
from jaxllm.serving.bench.options import DatasetOptions
from jaxllm.serving.text.chat import render_chat
from jaxllm.serving.text.tokenizer import Tokenizer

T = TypeVar("T")
PromptForm = Literal["tokens", "text", "template"]
"""What random prompts are: token ids, or text. template: ids, and a file's texts are rendered as a user's message."""


class Dataset:
    """Makes the requests of the options, the same for the same `seed`.

    `load` brings the tokenizer, only where it is needed.
    """

    def __init__(
        self, options: DatasetOptions, load: Callable[[], Tokenizer], seed: int, form: PromptForm = "tokens"
    ) -> None:
        self._options = options
        self._load = load
        self._rng = np.random.default_rng(seed)
        self._form = form

    def requests(self) -> list[LoadRequest]:
        """The requests, `num_prompts` of them where the file has enough or may be repeated.

        Raises `ConfigError` for files and lengths that do not work.
        """
        given, count = self._options, self._options.num_prompts
        match given.dataset_name:
            case "random":
                lengths = (given.input_len or given.random_input_len, given.output_len or given.random_output_len)
                return random_requests(
                    count, *lengths, self._vocabulary, self._rng,
                    range_ratio=given.random_range_ratio, prefix_len=given.random_prefix_len,
                    batch_size=given.random_batch_size,
                )  # fmt: skip
            case "prefix_repetition":
                return prefix_repetition(
                    count, given.prefix_repetition_prefix_len, given.prefix_repetition_suffix_len,
                    given.prefix_repetition_num_prefixes, given.output_len or given.prefix_repetition_output_len,
                    self._vocabulary, self._order(count),
                )  # fmt: skip
            case "sonnet":
                found = sonnet(
                    self._path, count, given.input_len or given.sonnet_input_len, given.sonnet_prefix_len,
                    given.output_len or given.sonnet_output_len, self._length, self._rng,
                )  # fmt: skip
                return [self._templated(request) for request in found]
            case "burstgpt":
                return random_prompts(self._drawn(files.burstgpt(self._path)), self._vocabulary)
            case "sharegpt":
                tokens = given.output_len or given.sharegpt_output_len
                found = list(islice(files.sharegpt(self._path, tokens, self._order, self._tokenizer), count))
                return self._repeated(found)
            case name:
                tokens = given.output_len or given.custom_output_len
                read = files.custom(self._path, tokens, lines_of_text=name == "file")
                return [self._templated(request) if name == "custom" else request for request in self._drawn(read)]

    @property
    def _path(self) -> str:
        assert self._options.dataset_path is not None
        return self._options.dataset_path

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return self._load()

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        tokenizer = self._tokenizer
        tokens = [token for token in range(tokenizer.size) if token not in tokenizer.added_tokens]
        return Vocabulary(tokens, self._rng, tokenizer if self._form == "text" else None)

    def _order(self, count: int) -> Sequence[int]:
        return range(count) if self._options.disable_shuffle else self._rng.permutation(count).tolist()

    def _drawn(self, found: Sequence[T]) -> list[T]:
        """As many as asked for, in the order asked for."""
        ordered = [found[index] for index in self._order(len(found))]
        return self._repeated(ordered)

    def _repeated(self, found: Sequence[T]) -> list[T]:
        """As many as asked for: from the start again where there are fewer."""
        if not found:
            raise ConfigError(f"{self._path}: the file contains no usable prompts")
        count = self._options.num_prompts
        repeats = 1 if self._options.no_oversample else -(-count // len(found))
        return [*found[:count]] if repeats == 1 else [found[index % len(found)] for index in range(count)]

    @cached_property
    def _renders(self) -> bool:
        wanted = self._form == "template" and not self._options.skip_chat_template
        return wanted and bool(self._tokenizer.hf.chat_template)

    def _encode(self, text: str) -> list[int]:
        """A user's message as the model reads it, or the text itself."""
        if not self._renders:
            return self._tokenizer.encode([text])[0]
        kwargs = self._options.chat_template_kwargs
        prompt = render_chat(self._tokenizer, [{"role": "user", "content": text}], chat_template_kwargs=kwargs)
        return self._tokenizer.encode([prompt], add_special_tokens=False)[0]

    def _length(self, text: str) -> int:
        return len(self._encode(text))

    def _templated(self, request: LoadRequest) -> LoadRequest:
        if not isinstance(request.prompt, str) or self._form != "template" or not self._renders:
            return request
        ids = self._encode(request.prompt)
        return replace(request, prompt=ids, prompt_tokens=len(ids))


def assign_models(
    requests: Sequence[LoadRequest], models: Sequence[str], *, at_random: bool, seed: int
) -> list[LoadRequest]:
    """The requests, each for one of these models: at random, or for one after the other."""
    chosen = np.arange(len(requests)) % len(models)
    if at_random:
        chosen = np.random.default_rng(seed).integers(len(models), size=len(requests))
    return [replace(request, model=models[index]) for request, index in zip(requests, chosen.tolist(), strict=True)]
