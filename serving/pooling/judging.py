"""Pairs of texts for language models that judge them with yes or no: how Qwen's rerankers were trained to be asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxllm.errors import RequestError
from jaxllm.serving.pooling.encode import Encoded
from jaxllm.serving.text.tokenizer import Tokenizer

ANSWERS = ("no", "yes")
"""Tokens whose models are asked like this."""


@dataclass(frozen=True)
class Question:
    """The words around two texts that a model judges: `pair` has places for both."""

    before: str
    pair: str
    after: str


_SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
JUDGED_TEXTS = Question(
    before=_SYSTEM,
    pair=(
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: {}\n<Document>: {}"
    ),
    after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
"""How Qwen3-Reranker was trained to be asked, by its model card, https://huggingface.co/Qwen/Qwen3-Reranker-0.6B."""
JUDGED_IMAGES = Question(
    before=_SYSTEM,
    pair=(
        "<Instruct>: Given a search query, retrieve relevant candidates that answer the query.<Query>:{}\n<Document>:{}"
    ),
    after="<|im_end|>\n<|im_start|>assistant\n",
)
"""The same of Qwen3-VL-Reranker, https://github.com/QwenLM/Qwen3-VL-Embedding."""


def encode_judged(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], limits: Sequence[int | None], asked: Question
) -> list[Encoded]:
    """Token ids of the question for each pair of query and document, each of at most the tokens that `limits` says.

    A document that is too long loses its end. Raises `RequestError` when a limit does not hold the question itself.
    """
    questions = [asked.pair.format(*pair) for pair in pairs]
    before, behind, *inner = tokenizer.encode([asked.before, asked.after, *questions], add_special_tokens=False)
    found = []
    for token_ids, limit in zip(inner, limits, strict=True):
        room = len(token_ids) if limit is None else limit - len(before) - len(behind)
        if room < 1:
            raise RequestError(
                f"truncate_prompt_tokens={limit}: the prompt template leaves no room for the texts", "prompt"
            )
        found.append(Encoded([*before, *token_ids[:room], *behind]))
    return found
