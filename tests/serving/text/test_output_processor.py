"""Streams, stop strings, logprobs and several sequences, over scripted tokens."""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import RequestError
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import RequestOutputKind, SamplingParams
from jaxllm.serving.llm.llm_engine import LLMEngine
from jaxllm.serving.text.input_processor import InputProcessor
from jaxllm.serving.text.output_processor import OutputProcessor
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput
from jaxllm.serving.text.tokenizer import Tokenizer

END = 2
STORY = "The cat 🙂 sat on the mat. The dog ran to the cat, and 日本語."
LIMITS = RequestLimits(vocab_size=360, max_model_len=1000, max_logprobs=5)

Build = Callable[..., tuple[Any, LLMEngine]]


class Reader:
    """Takes text at once, or does not, by turns."""

    def __init__(self, takes: list[bool]) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.num_taken = 0
        self._takes = takes

    def put_text(self, index: int, text: str, token_ids: list[int]) -> bool:
        takes = bool(self._takes) and self._takes.pop()
        if takes:
            self.num_taken += 1
            self.put(CompletionOutput(index, text, token_ids))
        return takes

    def put(self, completion: CompletionOutput) -> None:
        assert completion.index == 0
        self.text += completion.text
        self.token_ids += completion.token_ids


@pytest.fixture
def build(tokenizer: Tokenizer, scripted_engine: type) -> Build:
    """(scripted engine, LLMEngine over it); `text` is what every request generates, then end tokens for ever."""

    def make(text: str = STORY, *, with_tokenizer: bool = True, **engine: Any) -> tuple[Any, LLMEngine]:
        own = tokenizer if with_tokenizer else None
        tokens = tokenizer.encode([text])[0]
        scripted = scripted_engine(lambda request: chain(tokens, repeat(END)), **engine)
        return scripted, LLMEngine(scripted, own, InputProcessor(own, LIMITS, [END]))

    return make


def run(llm: LLMEngine, params: SamplingParams, *, stream: bool) -> list[RequestOutput]:
    params.output_kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    llm.add_request("r", [5, 6, 7], params)
    outputs: list[RequestOutput] = []
    while llm.has_unfinished_requests():
        outputs += llm.step()
    return outputs


def joined(outputs: Sequence[RequestOutput], index: int = 0) -> CompletionOutput:
    """The deltas of one sequence put together."""
    parts = [part for output in outputs for part in output.outputs if part.index == index]
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    logprobs = None if parts[-1].logprobs is None else list(chain.from_iterable(part.logprobs or [] for part in parts))
    return CompletionOutput(
        index=index,
        text="".join(part.text for part in parts),
        token_ids=reduce(operator.iadd, (part.token_ids for part in parts), []),
        cumulative_logprob=parts[-1].cumulative_logprob,
        logprobs=logprobs,
        finish_reason=parts[-1].finish_reason,
        stop_reason=parts[-1].stop_reason,
    )


def test_a_request_to_its_end_token(build: Build, tokenizer: Tokenizer) -> None:
    _, llm = build()
    (output,) = run(llm, SamplingParams(max_tokens=500), stream=False)
    (completion,) = output.outputs
    assert output.finished
    assert (output.request_id, output.prompt, output.prompt_token_ids) == ("r", None, [5, 6, 7])
    assert output.num_cached_tokens == 5
    assert completion.text == STORY
    assert completion.token_ids == [*tokenizer.encode([STORY])[0], END]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert completion.logprobs is None
    assert output.metrics is not None
    assert output.metrics.time_to_first_token is not None
    assert output.metrics.arrival_time <= (output.metrics.finished_time or 0)


@settings(deadline=None, max_examples=150)
@given(
    tokens=st.lists(st.integers(0, 359), min_size=1, max_size=30),
    stop=st.lists(st.sampled_from(["a", "t", " c", "the", "🙂", "\ufffd", "<|end|>"]), max_size=2),
    per_step=st.integers(1, 4),
    fields=st.fixed_dictionaries(
        {
            "include_stop_str_in_output": st.booleans(),
            "skip_special_tokens": st.booleans(),
            "spaces_between_special_tokens": st.booleans(),
            "ignore_eos": st.booleans(),
            "stop_token_ids": st.lists(st.integers(250, 359), max_size=2),
            "max_tokens": st.integers(1, 30),
            "logprobs": st.sampled_from([None, 0, 2]),
            "stream_interval": st.sampled_from([None, 1, 3]),
            "repetition_detection": st.sampled_from([None, {"max_pattern_size": 3, "min_count": 2}]),
        }
    ),
)
def test_a_stream_joined_is_the_whole(
    tokenizer: Tokenizer,
    scripted_engine: type,
    tokens: list[int],
    stop: list[str],
    per_step: int,
    fields: dict[str, Any],
) -> None:
    params = SamplingParams(**fields, stop=stop)
    results = []
    for stream in (True, False):
        engine = scripted_engine(lambda request: chain(tokens, repeat(END)), tokens_per_step=per_step)
        llm = LLMEngine(engine, tokenizer, InputProcessor(tokenizer, LIMITS, [END]))
        outputs = run(llm, params, stream=stream)
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert not engine.has_unfinished_requests(), "the engine was not told"
        results.append(joined(outputs))
    streamed, whole = results
    assert streamed == whole
    assert whole.logprobs is None or len(whole.logprobs) == len(whole.token_ids)
    if whole.logprobs is not None:
        chosen = [choices[token].logprob for choices, token in zip(whole.logprobs, whole.token_ids, strict=True)]
        assert whole.cumulative_logprob == pytest.approx(sum(chosen), abs=1e-9)
    found = [text for text in stop if text in whole.text]
    assert not found or (params.include_stop_str_in_output and whole.stop_reason in found)


def test_a_stop_string_ends_the_engines_request(build: Build) -> None:
    engine, llm = build()
    (output,) = run(llm, SamplingParams(max_tokens=500, stop=["mat. Th", "nowhere"]), stream=False)
    assert output.outputs[0].text == "The cat 🙂 sat on the "
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "mat. Th")
    assert engine.finished == [("r", "mat. Th")]
    assert engine.steps == len(output.outputs[0].token_ids)


def test_a_stop_string_may_stay_in_the_output(build: Build) -> None:
    _, llm = build()
    (output,) = run(llm, SamplingParams(max_tokens=500, stop="mat. Th", include_stop_str_in_output=True), stream=False)
    assert output.outputs[0].text == "The cat 🙂 sat on the mat. Th"


def test_a_stream_never_shows_part_of_a_stop_string(build: Build) -> None:
    _, llm = build("aaab aaac")
    outputs = run(llm, SamplingParams(max_tokens=500, stop="aaac"), stream=True)
    assert "".join(output.outputs[0].text for output in outputs) == "aaab "
    shown = ""
    for output in outputs:
        shown += output.outputs[0].text
        assert "aaab ".startswith(shown)


def test_stop_strings_do_not_count_before_min_tokens(build: Build, tokenizer: Tokenizer) -> None:
    _, llm = build("the cat, the cat, the cat")
    first = len(tokenizer.encode(["the cat"])[0])
    (output,) = run(llm, SamplingParams(max_tokens=99, stop="cat", min_tokens=first), stream=False)
    assert output.outputs[0].text == "the cat, the "


def test_the_engines_own_end_wins_over_telling_it(build: Build, tokenizer: Tokenizer) -> None:
    """The stop string is complete with the token that also reaches max_tokens: the engine has finished already."""
    engine, llm = build("the cat")
    length = len(tokenizer.encode(["the cat"])[0])
    (output,) = run(llm, SamplingParams(max_tokens=length, stop="cat"), stream=False)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "cat")
    assert engine.finished == []


def test_stop_tokens_are_ids_but_not_text(build: Build, tokenizer: Tokenizer) -> None:
    stop = tokenizer.encode([STORY])[0][2]
    results = {}
    for include in (False, True):
        _, llm = build()
        params = SamplingParams(max_tokens=99, stop_token_ids=[stop], include_stop_str_in_output=include)
        results[include] = run(llm, params, stream=False)[0].outputs[0]
    assert results[False].token_ids == results[True].token_ids == tokenizer.encode([STORY])[0][:3]
    assert results[False].stop_reason == stop
    assert results[True].text == results[False].text + tokenizer.decode([stop])
    assert len(results[True].text) > len(results[False].text)


def test_end_tokens_shown_when_special_tokens_are(build: Build) -> None:
    _, llm = build("a")
    params = SamplingParams(max_tokens=3, ignore_eos=True, skip_special_tokens=False)
    assert run(llm, params, stream=False)[0].outputs[0].text == "a<|end|><|end|>"


def test_without_detokenisation(build: Build, tokenizer: Tokenizer) -> None:
    _, llm = build("the cat")
    for stream in (False, True):
        completion = joined(run(llm, SamplingParams(detokenize=False, max_tokens=3, logprobs=1), stream=stream))
        assert completion.text == ""
        assert completion.token_ids == tokenizer.encode(["the cat"])[0][:3]
        assert completion.logprobs is not None
        assert completion.logprobs[0][completion.token_ids[0]].decoded_token is None


def test_logprobs_as_vllm_shows_them(build: Build, tokenizer: Tokenizer) -> None:
    _, llm = build("the cat")
    (output,) = run(llm, SamplingParams(max_tokens=3, logprobs=3, prompt_logprobs=1), stream=False)
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert len(completion.logprobs) == 3
    token = completion.token_ids[0]
    entry = completion.logprobs[0]
    assert list(entry) == [token, token + 1, token + 2], "the chosen token first, then by probability"
    assert [choice.rank for choice in entry.values()] == [2, 1, 3]
    assert entry[token].decoded_token == tokenizer.decode([token])
    assert completion.cumulative_logprob == pytest.approx(-1.5 - sum(completion.token_ids) / 1000)
    assert output.prompt_logprobs is not None
    assert [None if item is None else list(item) for item in output.prompt_logprobs] == [None, [6, 7], [7, 8]]


def test_prompt_logprobs_come_once_in_a_stream(build: Build) -> None:
    _, llm = build("the cat sat")
    outputs = run(llm, SamplingParams(max_tokens=9, prompt_logprobs=0), stream=True)
    assert [output.prompt_logprobs is None for output in outputs] == [False] + [True] * (len(outputs) - 1)


def vary(request: Request) -> Iterable[int]:
    """The k-th sequence generates token 100 - 10 k, k + 1 times."""
    index = int(request.request_id.rpartition("-")[2])
    return chain([100 - 10 * index] * (index + 1), repeat(END))


@pytest.mark.parametrize("stream", [False, True])
def test_several_sequences(tokenizer: Tokenizer, scripted_engine: type, stream: bool) -> None:
    llm = LLMEngine(scripted_engine(vary), tokenizer, InputProcessor(tokenizer, LIMITS, [END]))
    outputs = run(llm, SamplingParams(n=3, max_tokens=99), stream=stream)
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert [joined(outputs, index).token_ids for index in range(3)] == [[100, END], [90, 90, END], [80, 80, 80, END]]
    assert len(outputs) == 1 or stream


def test_best_of_returns_the_most_likely(tokenizer: Tokenizer, scripted_engine: type) -> None:
    llm = LLMEngine(scripted_engine(vary), tokenizer, InputProcessor(tokenizer, LIMITS, [END]))
    (output,) = run(llm, SamplingParams(n=2, best_of=3, max_tokens=1), stream=False)
    assert [(each.index, each.token_ids, each.logprobs) for each in output.outputs] == [
        (0, [80], None),
        (1, [90], None),
    ]
    assert [each.cumulative_logprob for each in output.outputs] == pytest.approx([-0.58, -0.59])


def test_aborting_forgets(build: Build) -> None:
    engine, llm = build()
    for name in ("a", "b"):
        llm.add_request(name, [5], SamplingParams(n=2, max_tokens=9))
    llm.step()
    llm.abort_request(["a", "unknown"])
    assert engine.aborted == ["a-0", "a-1"]
    assert {output.request_id for output in llm.step()} == {"b"}
    llm.abort_all()
    assert not engine.running
    assert not llm.has_unfinished_requests()


def test_a_refused_request_takes_its_batch_with_it(build: Build) -> None:
    engine, llm = build(refuse="b-1")
    llm.add_request("running", [5], SamplingParams(max_tokens=3))
    batch = llm.inputs.prepare([[5], [6]], SamplingParams(n=2), ["a", "b"])
    with pytest.raises(RequestError, match="prompt 1: refused"):
        llm.add(batch)
    assert list(engine.running) == ["running"]
    outputs = []
    while llm.has_unfinished_requests():
        outputs += llm.step()
    assert outputs[-1].finished


def test_a_request_id_is_used_once_at_a_time(build: Build) -> None:
    engine, llm = build("a")
    llm.add_request("r", [5], SamplingParams(max_tokens=9))
    with pytest.raises(RequestError, match="'r' is in use"):
        llm.add_request("r", [5], SamplingParams(max_tokens=9))
    assert list(engine.running) == ["r"], "the first goes on"
    while llm.has_unfinished_requests():
        llm.step()
    llm.add_request("r", [5])


def test_outputs_of_unknown_requests_are_dropped(tokenizer: Tokenizer) -> None:
    processed = OutputProcessor(tokenizer).process([EngineOutput("late", [1], finish_reason="abort")])
    assert (processed.outputs, processed.stopped) == ([], [])


@given(takes=st.lists(st.booleans(), max_size=60), cuts=st.lists(st.integers(1, 4), min_size=60, max_size=60))
def test_what_a_reader_takes_at_once_does_not_come_again(
    tokenizer: Tokenizer, takes: list[bool], cuts: list[int]
) -> None:
    processor, reader = OutputProcessor(tokenizer, measure=True), Reader(list(takes))
    (request,) = InputProcessor(tokenizer, LIMITS, [END]).prepare(
        [[5, 6, 7]], SamplingParams(max_tokens=500), ["r"], stream=True
    )
    processor.add(request, reader)
    tokens = tokenizer.encode([STORY])[0]
    measured, rest = 0, list(tokens)
    for cut in (*cuts, len(tokens)):
        step, rest = rest[:cut], rest[cut:]
        last = not rest
        processed = processor.process([EngineOutput("r", step, finish_reason="length" if last else None)])
        for output in processed.outputs:
            reader.put(output.outputs[0])
        assert processed.measurements is not None
        measured += processed.measurements.generation_tokens
        if last:
            break
    assert (reader.text, reader.token_ids, measured) == (STORY, tokens, len(tokens))
    assert reader.num_taken <= sum(takes)
    assert len(processor) == 0
