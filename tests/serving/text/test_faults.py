"""Output that cannot be read ends its own request; the others of the same step are read."""

from collections.abc import Callable
from typing import Any

import pytest

from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import RequestFaultError
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.text.detokenizer import IncrementalDecoder
from jaxllm.serving.text.input_processor import InputProcessor
from jaxllm.serving.text.output_processor import OutputProcessor, Processed
from jaxllm.serving.text.repetition import RepetitionWatch
from jaxllm.serving.text.sequence import Sequence
from jaxllm.serving.text.stop_strings import StopStrings
from jaxllm.serving.text.tokenizer import Tokenizer

TEXT = "The cat sat on the mat."
LIMITS = RequestLimits(vocab_size=360, max_model_len=1000, max_logprobs=5)
DETECTION = {"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 4}
PARTS: list[tuple[Any, str, dict[str, Any], bool]] = [
    (IncrementalDecoder, "push", {}, True),
    (IncrementalDecoder, "flush", {}, True),
    (StopStrings, "push", {"stop": "zzz"}, True),
    (StopStrings, "push", {"stop": "zzz"}, False),
    (RepetitionWatch, "push", {"repetition_detection": DETECTION}, True),
    (Sequence, "take_text", {}, True),
    (Sequence, "delta", {}, True),
    (Sequence, "completions", {}, False),
    (Sequence, "_take_logprobs", {"logprobs": 0}, True),
    (Sequence, "_take_logprobs", {"logprobs": 0}, False),
]
"""The function called for a sequence, the parameters that make it so, and whether the request streams."""


def outputs_of(name: str, tokens: list[int]) -> list[EngineOutput]:
    return [
        EngineOutput(name, [token], finish_reason="length" if index == len(tokens) - 1 else None)
        for index, token in enumerate(tokens)
    ]


class PanicException(BaseException):
    """The panic that libraries in Rust raise: no `Exception`, and of a class that cannot be imported."""


@pytest.mark.parametrize("kind", [ZeroDivisionError, PanicException])
@pytest.mark.parametrize(("owner", "method", "params", "stream"), PARTS)
def test_only_the_request_that_fails_ends(
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    method: str,
    params: dict[str, Any],
    stream: bool,
    kind: type[BaseException],
) -> None:
    inputs, processor = InputProcessor(tokenizer, LIMITS), OutputProcessor(tokenizer, measure=True)
    tokens = tokenizer.encode([TEXT])[0]
    for name in ("good", "bad", "other"):
        asked = SamplingParams(n=2, max_tokens=99, **(params if name == "bad" else {}))
        (prepared,) = inputs.prepare([[5, 6, 7]], asked, [name], stream=stream)
        processor.add(prepared)
    children, fails = processor.running(), [False]
    monkeypatch.setattr(owner, method, failing(getattr(owner, method), fails, kind))
    total = Processed()
    for index, step in enumerate(zip(*(outputs_of(child, tokens) for child in children), strict=True)):
        for output in step:
            is_bad = children[output.request_id] == "bad"
            output.logprobs = [] if is_bad and "logprobs" in params else None
            # One child at a time, so that it is known whose work fails.
            fails[0] = is_bad and index >= 3
            found = processor.process([output])
            total.outputs += found.outputs
            total.refused += found.refused
            total.aborted += found.aborted
    pieces = [(each.request_id, each.outputs[0].text) for each in total.outputs if each.outputs[0].index == 0]
    for name in ("good", "other"):
        assert "".join(text for owner, text in pieces if owner == name) == TEXT
    assert [name for name, _ in total.refused] == ["bad"]
    assert isinstance(total.refused[0][1], RequestFaultError)
    assert len(processor) == 0
    assert total.aborted
    assert {children[child] for child in total.aborted} == {"bad"}
    assert not any(each.request_id == "bad" and each.finished for each in total.outputs)


def failing(original: Callable[..., Any], fails: list[bool], kind: type[BaseException]) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        if fails[0]:
            raise kind("injected")
        return original(*args, **kwargs)

    return method
