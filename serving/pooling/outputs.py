"""The result of a request to a pooling model, under vLLM's names."""

from dataclasses import dataclass

import numpy as np

from jaxllm.serving.text.repr import Row, Shown, ShownInNotebooks


@dataclass(slots=True, repr=False)
class PoolingOutput(Shown):
    """The result as it is: `data` is float32 [O], or [tokens, O] where every token was asked for."""

    data: np.ndarray


@dataclass(slots=True, repr=False)
class PoolingRequestOutput(ShownInNotebooks):
    """The result of one text. `prompt` is None where token ids were given, or two texts."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    finished: bool = True
    prompt: str | None = None
    num_cached_tokens: int = 0

    @property
    def num_output_tokens(self) -> int:
        """None are generated."""
        return 0

    def to_dicts(self) -> list[Row]:
        """One row."""
        tokens = len(self.prompt_token_ids)
        return [{"request_id": self.request_id, "data": self.outputs.data, "prompt_tokens": tokens}]


@dataclass(slots=True, repr=False)
class EmbeddingOutput(Shown):
    """A vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Numbers in it."""
        return len(self.embedding)


@dataclass(slots=True, repr=False)
class EmbeddingRequestOutput(ShownInNotebooks):
    """The embedding of one text."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True

    @classmethod
    def of(cls, base: PoolingRequestOutput) -> "EmbeddingRequestOutput":
        """From the plain result."""
        return cls(base.request_id, EmbeddingOutput(base.outputs.data.tolist()), base.prompt_token_ids)

    def to_dicts(self) -> list[Row]:
        """One row."""
        return [
            {
                "request_id": self.request_id,
                "embedding": self.outputs.embedding,
                "prompt_tokens": len(self.prompt_token_ids),
            }
        ]


@dataclass(slots=True, repr=False)
class ClassificationOutput(Shown):
    """A probability for every class, or a score where no activation was asked for."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """Numbers in it."""
        return len(self.probs)


@dataclass(slots=True, repr=False)
class ClassificationRequestOutput(ShownInNotebooks):
    """The classes of one text."""

    request_id: str
    outputs: ClassificationOutput
    prompt_token_ids: list[int]
    finished: bool = True

    @classmethod
    def of(cls, base: PoolingRequestOutput) -> "ClassificationRequestOutput":
        """From the plain result."""
        return cls(base.request_id, ClassificationOutput(base.outputs.data.tolist()), base.prompt_token_ids)

    def to_dicts(self) -> list[Row]:
        """One row."""
        return [
            {"request_id": self.request_id, "probs": self.outputs.probs, "prompt_tokens": len(self.prompt_token_ids)}
        ]


@dataclass(slots=True, repr=False)
class ScoringOutput(Shown):
    """How well two texts fit each other."""

    score: float


@dataclass(slots=True, repr=False)
class ScoringRequestOutput(ShownInNotebooks):
    """The score of two texts; `prompt_token_ids` are their tokens."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    finished: bool = True

    def to_dicts(self) -> list[Row]:
        """One row."""
        return [
            {"request_id": self.request_id, "score": self.outputs.score, "prompt_tokens": len(self.prompt_token_ids)}
        ]
