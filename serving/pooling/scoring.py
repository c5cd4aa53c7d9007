"""How well two texts fit: by a cross-encoder that reads both, by the angle between their embeddings, or by MaxSim."""

from collections.abc import Sequence

import numpy as np

from jaxllm.config.engine_info import PoolingInfo
from jaxllm.errors import RequestError
from jaxllm.pooling.params import PoolingParams
from jaxllm.serving.pooling.inputs import GivenPrompt, TextPair
from jaxllm.serving.pooling.judging import ANSWERS
from jaxllm.serving.pooling.outputs import PoolingRequestOutput, ScoringOutput, ScoringRequestOutput
from jaxllm.serving.pooling.sides import Side, Writer, rendered


class Scoring:
    """One call: the `prompts` that the engine must pool, with `params`, and their results made `scores`.

    Raises `RequestError` for a model that gives no scores, and for lists whose lengths cannot be combined.
    """

    def __init__(
        self,
        pooling: PoolingInfo,
        first: Sequence[str | Side],
        second: Sequence[str | Side],
        params: PoolingParams | None = None,
        writer: Writer | None = None,
    ) -> None:
        """`writer` writes prompts of sides with images, and then those of the texts alongside, too."""
        if len(first) not in (1, len(second)) or not second or not first:
            raise RequestError(
                f"{len(first)} first texts and {len(second)} second texts: give one first text for all second texts, "
                "or one for each",
                "text_1",
            )
        self._count = len(second)
        self._one_first = len(first) == 1
        task = next((each for each in ("score", "embed", "token_embed") if each in pooling.tasks), None)
        if task is None:
            raise RequestError(
                f"this model distinguishes {len(pooling.labels)} classes, but scoring two texts requires a model with "
                "one label, or an embedding model",
                "model",
            )
        self.is_late_interaction = task == "token_embed"
        """Whether `scores` has more to compute than an event loop should."""
        self._crosses, self._measure = task == "score", _maxsim if task == "token_embed" else _cosine
        has_images = any(isinstance(side, Side) for side in (*first, *second))
        if has_images and self._crosses and pooling.answers != ANSWERS:
            raise RequestError("this model reads pairs of texts only, without images", "text_1")
        own = PoolingParams() if params is None else params
        cut = own.truncate_prompt_tokens
        self.prompts: list[GivenPrompt]
        if self._crosses:
            firsts = list(first) * self._count if self._one_first else first
            self.prompts = [_pair(*sides, writer) for sides in zip(firsts, second, strict=True)]
            self.params = PoolingParams(task="score", truncate_prompt_tokens=cut, use_activation=own.activates)
        else:
            if own.activates is not None:
                raise RequestError(
                    "use_activation does not apply to embedding models, whose scores are cosines", "use_activation"
                )
            used = writer if has_images or (writer is not None and writer.of_texts) else None
            roles = ("", "") if used is None else used.roles
            pairs = zip(roles, (first, second), strict=True)
            self.prompts = [_alone(side, role, used) for role, several in pairs for side in several]
            self.params = PoolingParams(task=task, truncate_prompt_tokens=cut, normalize=True)

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
        return [self._scored(first, second) for first, second in zip(firsts, seconds, strict=True)]

    def _scored(self, first: PoolingRequestOutput, second: PoolingRequestOutput) -> ScoringRequestOutput:
        score = self._measure(first.outputs.data, second.outputs.data)
        tokens = first.prompt_token_ids + second.prompt_token_ids
        return ScoringRequestOutput(second.request_id, ScoringOutput(score), tokens)


def crosses(pooling: PoolingInfo) -> bool:
    """Whether the model reads both sides together."""
    return "score" in pooling.tasks


def _pair(first: str | Side, second: str | Side, writer: Writer | None) -> GivenPrompt:
    if isinstance(first, str) and isinstance(second, str):
        return TextPair(first, second)
    assert writer is not None
    return rendered(writer.render, [*zip(writer.roles, (first, second), strict=True)])


def _alone(side: str | Side, role: str, writer: Writer | None) -> GivenPrompt:
    if writer is not None:
        return rendered(writer.render, [(role, side)])
    assert isinstance(side, str)
    return side


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    # Rounding may lead a little beyond 1.
    return float(np.clip(np.dot(first, second), -1.0, 1.0))


def _maxsim(query: np.ndarray, document: np.ndarray) -> float:
    """Late interaction: the sum over tokens of the query of the best cosine with one of the document's."""
    if not len(query) or not len(document):
        return 0.0
    return float((query @ document.T).max(axis=1).sum())
