"""How well two texts fit: by a cross-encoder that reads both, or by the angle between their embeddings."""

from collections.abc import Sequence

import numpy as np

from jaxllm.errors import RequestError
from jaxllm.info import PoolingInfo
from jaxllm.pooling.params import PoolingParams
from jaxllm.serving.pooling.inputs import TextPair
from jaxllm.serving.pooling.outputs import PoolingRequestOutput, ScoringOutput, ScoringRequestOutput


class Scoring:
    """One call: the `prompts` that the engine must pool, with `params`, and their results made `scores`.

    Raises `RequestError` for a model that gives no scores, and for lists whose lengths do not go together.
    """

    def __init__(
        self, pooling: PoolingInfo, first: Sequence[str], second: Sequence[str], params: PoolingParams | None = None
    ) -> None:
        if len(first) not in (1, len(second)) or not second or not first:
            raise RequestError(
                f"{len(first)} first texts and {len(second)} second ones: give one first text for all second ones, or "
                "one for each",
                "text_1",
            )
        self._count = len(second)
        self._one_first = len(first) == 1
        self._crosses = "score" in pooling.tasks
        if not self._crosses and "embed" not in pooling.tasks:
            raise RequestError(
                f"this model tells {len(pooling.labels)} classes apart; scores of two texts need a model with one "
                "label, or an embedding model",
                "model",
            )
        own = PoolingParams() if params is None else params
        cut = own.truncate_prompt_tokens
        self.prompts: list[str | TextPair]
        if self._crosses:
            firsts = list(first) * self._count if self._one_first else first
            self.prompts = [TextPair(*texts) for texts in zip(firsts, second, strict=True)]
            self.params = PoolingParams(task="score", truncate_prompt_tokens=cut, use_activation=own.activates)
        else:
            if own.activates is not None:
                raise RequestError("use_activation: scores of an embedding model are cosines", "use_activation")
            self.prompts = [*first, *second]
            self.params = PoolingParams(task="embed", truncate_prompt_tokens=cut, normalize=True)

    def scores(self, results: Sequence[PoolingRequestOutput]) -> list[ScoringRequestOutput]:
        """One score for each second text, from the results of all `prompts`."""
        if self._crosses:
            return [
                ScoringRequestOutput(each.request_id, ScoringOutput(float(each.outputs.data[0])), each.prompt_token_ids)
                for each in results
            ]
        firsts, seconds = results[: -self._count], results[-self._count :]
        if self._one_first:
            firsts = [*firsts] * self._count
        return [_cosine(first, second) for first, second in zip(firsts, seconds, strict=True)]


def _cosine(first: PoolingRequestOutput, second: PoolingRequestOutput) -> ScoringRequestOutput:
    # Rounding may lead a little beyond 1.
    score = float(np.clip(np.dot(first.outputs.data, second.outputs.data), -1.0, 1.0))
    tokens = first.prompt_token_ids + second.prompt_token_ids
    return ScoringRequestOutput(second.request_id, ScoringOutput(score), tokens)
