"""`LLM` on the trained model: what it returns is what transformers computes, and no misuse breaks it."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from jaxllm import LLM, EngineArgs, EngineError, RequestError, RequestOutput, RequestOutputKind, SamplingParams
from jaxllm.serving.llm.offline_metrics import Counter, Gauge, Histogram
from tests.conftest import RunPython
from tests.e2e.text.conftest import SMALL

PROMPTS = [
    "Once upon a time",
    "Mira is",
    "1, 2, 3,",
    "In the morning, 🙂",
    "There was a little fox who lived near the river and liked to count the boats that went by every day. One day",
]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
TALK = [{"role": "user", "content": "What is 2 + 3?"}]


def text_of(outputs: list[RequestOutput], index: int = 0) -> str:
    return outputs[index].outputs[0].text


def generate(llm: LLM, prompts: Any, params: Any = GREEDY, **rest: Any) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False, **rest)


def log_softmax(reference: Any, token_ids: list[int]) -> npt.NDArray[np.float32]:
    """float32 [tokens, vocabulary]: row i is what follows token i."""
    import torch

    with torch.no_grad():
        result: npt.NDArray[np.float32] = torch.log_softmax(reference(torch.tensor([token_ids])).logits[0], -1).numpy()
    return result


def test_greedy_tokens_are_those_of_transformers(llm: LLM, reference: Any) -> None:
    import torch

    for output in generate(llm, PROMPTS):
        (want,) = reference.generate(
            torch.tensor([output.prompt_token_ids]), do_sample=False, max_new_tokens=24, pad_token_id=0
        ).tolist()
        completion = output.outputs[0]
        assert completion.token_ids == want[len(output.prompt_token_ids) :]
        assert completion.text == llm.get_tokenizer().decode(completion.token_ids, skip_special_tokens=True)
        assert completion.finish_reason == ("length" if len(completion.token_ids) == 24 else "stop")


def test_logprobs_are_those_of_transformers(llm: LLM, reference: Any) -> None:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=8, logprobs=3, prompt_logprobs=2)
    for output in generate(llm, PROMPTS, params):
        completion = output.outputs[0]
        prompt = output.prompt_token_ids
        table = log_softmax(reference, prompt + completion.token_ids)
        assert completion.logprobs is not None
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        entries = [*output.prompt_logprobs[1:], *completion.logprobs]
        assert len(entries) == len(prompt) - 1 + len(completion.token_ids)
        for place, entry in enumerate(entries):
            assert entry is not None
            chosen = next(iter(entry))
            assert chosen == [*prompt, *completion.token_ids][place + 1]
            for token_id, choice in entry.items():
                assert choice.logprob == pytest.approx(table[place, token_id], abs=1e-3)
                assert choice.rank == 1 + int((table[place] > table[place, token_id]).sum())
        total = sum(
            entry[token].logprob for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)
        )
        assert completion.cumulative_logprob == pytest.approx(total, abs=1e-4)


def test_logprobs_of_listed_tokens(llm: LLM, reference: Any) -> None:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=6, logprob_token_ids=[900, 7, 41])
    for output in generate(llm, PROMPTS, params):
        (completion,) = output.outputs
        prompt = output.prompt_token_ids
        table = log_softmax(reference, prompt + completion.token_ids)[len(prompt) - 1 :]
        assert completion.logprobs is not None
        for row, token_id, entry in zip(table, completion.token_ids, completion.logprobs, strict=False):
            assert list(entry) == list(dict.fromkeys([token_id, 900, 7, 41]))
            assert entry[token_id].rank == 1 + int((row > row[token_id]).sum())
            for each, choice in entry.items():
                assert choice.logprob == pytest.approx(row[each], abs=1e-3)
                assert each == token_id or choice.rank is None
                assert choice.decoded_token == llm.get_tokenizer().decode([each])


def test_chat_is_generation_after_the_template(llm: LLM) -> None:
    token_ids = llm.get_tokenizer().apply_chat_template(TALK, add_generation_prompt=True)["input_ids"]
    (chatted,) = llm.chat(TALK, GREEDY, use_tqdm=False)
    (generated,) = generate(llm, [token_ids])
    assert chatted.prompt_token_ids == token_ids
    assert chatted.outputs[0].token_ids == generated.outputs[0].token_ids


def test_sequences_of_a_request_are_requests_with_following_seeds(llm: LLM) -> None:
    def params(**fields: Any) -> SamplingParams:
        return SamplingParams(temperature=1.0, max_tokens=10, logprobs=0, **fields)

    alone = [generate(llm, PROMPTS[0], params(seed=30 + index))[0].outputs[0] for index in range(4)]
    (several,) = generate(llm, PROMPTS[0], params(seed=30, n=4))
    assert [each.token_ids for each in several.outputs] == [each.token_ids for each in alone]
    assert len({tuple(each.token_ids) for each in alone}) > 1
    (best,) = generate(llm, PROMPTS[0], params(seed=30, n=1, best_of=4))
    ranked = max(alone, key=lambda each: each.cumulative_logprob or 0.0)
    assert best.outputs[0].token_ids == ranked.token_ids


def test_stop_strings(llm: LLM) -> None:
    whole = text_of(generate(llm, PROMPTS[0]))
    stop = whole[7:12]
    assert len(llm.get_tokenizer().encode(stop)) > 1, "the stop string must span tokens"
    for include in (False, True):
        params = SamplingParams(temperature=0, max_tokens=24, stop=[stop], include_stop_str_in_output=include)
        completion = generate(llm, PROMPTS[0], params)[0].outputs[0]
        assert completion.text == whole[: whole.index(stop) + len(stop) * include]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert not llm.llm_engine.engine.has_unfinished_requests(), "the engine goes on with a stopped request"


def test_a_stream_is_the_same_text(llm: LLM) -> None:
    engine = llm.llm_engine
    texts = dict.fromkeys(map(str, range(len(PROMPTS))), "")
    params = replace(GREEDY, output_kind=RequestOutputKind.DELTA)
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            texts[output.request_id] += output.outputs[0].text
    assert list(texts.values()) == [output.outputs[0].text for output in generate(llm, PROMPTS)]


def test_stop_tokens_end_tokens_and_least_lengths(llm: LLM) -> None:
    whole = generate(llm, PROMPTS[0])[0].outputs[0]
    stop = whole.token_ids[5]
    first = whole.token_ids.index(stop)
    completion = generate(llm, PROMPTS[0], SamplingParams(temperature=0, stop_token_ids=[stop]))[0].outputs[0]
    assert completion.token_ids == whole.token_ids[: first + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    (answer,) = llm.chat(TALK, SamplingParams(temperature=0, max_tokens=60), use_tqdm=False)
    ended = answer.outputs[0]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)
    longer = SamplingParams(temperature=0, max_tokens=60, min_tokens=len(ended.token_ids) + 3)
    assert len(llm.chat(TALK, longer, use_tqdm=False)[0].outputs[0].token_ids) >= len(ended.token_ids) + 3
    on = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    assert len(llm.chat(TALK, on, use_tqdm=False)[0].outputs[0].token_ids) == 60


def test_truncation_is_giving_the_end(llm: LLM) -> None:
    (full,) = generate(llm, PROMPTS[4])
    cut = SamplingParams(temperature=0, max_tokens=24, truncate_prompt_tokens=7)
    (short,) = generate(llm, PROMPTS[4], cut)
    (end,) = generate(llm, [full.prompt_token_ids[-7:]])
    assert short.prompt_token_ids == full.prompt_token_ids[-7:]
    assert short.outputs[0].token_ids == end.outputs[0].token_ids


def test_bad_words_are_not_written(llm: LLM) -> None:
    words = text_of(generate(llm, PROMPTS[0])).split()
    params = SamplingParams(temperature=0, max_tokens=24, min_tokens=8, bad_words=words[:3])
    written = text_of(generate(llm, PROMPTS[0], params))
    assert written
    assert not set(words[:3]) & set(written.split())


def test_bias_and_allowed_tokens(llm: LLM) -> None:
    params = [
        SamplingParams(temperature=0, max_tokens=3, logit_bias={300: 100}),
        SamplingParams(temperature=50, max_tokens=24, seed=1, allowed_token_ids=[301, 302]),
        GREEDY,
    ]
    biased, allowed, plain = generate(llm, [PROMPTS[0]] * 3, params)
    assert biased.outputs[0].token_ids == [300] * 3
    assert set(allowed.outputs[0].token_ids) == {301, 302}
    assert len(plain.outputs[0].token_ids) == 24


def test_cached_prompts_are_counted_and_salted(llm: LLM) -> None:
    token_ids = list(range(20, 60))
    assert llm.reset_prefix_cache()
    assert generate(llm, [token_ids])[0].num_cached_tokens == 0
    assert generate(llm, [token_ids])[0].num_cached_tokens == 32
    assert generate(llm, {"prompt_token_ids": token_ids, "cache_salt": "other"})[0].num_cached_tokens == 0
    assert llm.reset_prefix_cache()
    assert generate(llm, [token_ids])[0].num_cached_tokens == 0


def test_more_prompts_than_slots_in_order(llm: LLM) -> None:
    prompts = [f"{number}, {number + 1}," for number in range(30)]
    alone = [text_of(generate(llm, prompt)) for prompt in prompts[:3]]
    together = generate(llm, prompts, priority=list(range(30)))
    assert [output.prompt for output in together] == prompts
    assert [text_of(together, index) for index in range(3)] == alone


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        (["fine", ""], {}, "prompt 1: the prompt is empty"),
        (["fine", "word " * 300], {}, "prompt 1: the prompt has .* tokens.*max_model_len=256"),
        (["fine", [5, 1 << 20]], {}, "prompt 1: prompt token 1 is 1048576"),
        (["fine", "a\ud800"], {}, "prompt 1: not valid Unicode"),
        (["fine", None], {}, "prompt 1: a prompt must be a string or a list of token IDs"),
        (["fine"], {"logprobs": 21}, "logprobs=21: must be at most 20"),
        (["fine"], {"stop_token_ids": [1 << 20]}, "stop_token_ids"),
        (["fine"], {"allowed_token_ids": [1 << 20]}, "allowed_token_ids"),
        (["fine"], {"logit_bias": {1 << 20: 1.0}}, "logit_bias"),
    ],
)
def test_wrong_requests_change_nothing(llm: LLM, prompts: Any, params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        generate(llm, prompts, SamplingParams(**params))
    assert not llm.llm_engine.engine.has_unfinished_requests()
    assert text_of(generate(llm, PROMPTS[0]))


def test_aborting_one_request_leaves_those_named_by_its_characters(llm: LLM) -> None:
    engine, params = llm.llm_engine, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    params.output_kind = RequestOutputKind.FINAL_ONLY
    for abort in (engine.abort_request, engine.engine.abort_request):
        for name in ("1", "0", "10"):
            engine.add_request(name, PROMPTS[0], params)
        abort("10")
        finished = []
        while engine.engine.has_unfinished_requests():
            finished += [each for each in engine.step() if each.outputs[0].token_ids]
        engine.abort_all()
        assert sorted(each.request_id for each in finished) == ["0", "1"]


def test_the_engine_beneath_lives_as_long_as_somebody_has_it() -> None:
    engine = LLM("demo", **SMALL, enforce_eager=True).llm_engine
    engine.add_request("a", PROMPTS[0], SamplingParams(temperature=0, max_tokens=3))
    assert [output.finished for output in (engine.step(), engine.step(), engine.step())[-1]] == [True]
    engine.add_request("b", PROMPTS[0])
    engine.close()
    engine.close()
    for call in (engine.step, lambda: engine.add_request("c", PROMPTS[0]), lambda: engine.abort_request("b")):
        with pytest.raises(EngineError, match="this engine is closed: create a new one"):
            call()


def test_inside_a_running_event_loop(llm: LLM) -> None:
    async def cell() -> str:
        return text_of(generate(llm, PROMPTS[0]))

    assert asyncio.run(cell()) == text_of(generate(llm, PROMPTS[0]))


def test_the_last_reference_frees_device_memory(llm: LLM) -> None:
    import jax

    want = text_of(generate(llm, PROMPTS[0]))
    before = len(jax.live_arrays())
    gc.disable()
    try:
        for _ in range(2):
            other = LLM("demo", **SMALL, enforce_eager=True)
            assert text_of(generate(other, PROMPTS[0])) == want
            assert len(jax.live_arrays()) > before
            del other
            assert len(jax.live_arrays()) == before, "something keeps device memory"
    finally:
        gc.enable()


def test_a_script_without_a_main_guard(run_python: RunPython, tmp_path: Path, llm: LLM) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from jaxllm import LLM, SamplingParams\n"
        f"llm = LLM('demo', enforce_eager=True, **{SMALL})\n"
        f"print(llm.generate({PROMPTS[0]!r}, SamplingParams(temperature=0, max_tokens=24))[0].outputs[0].text)\n"
    )
    result = run_python(str(script), env={"PYTHONPATH": str(Path(__file__).parents[3])})
    assert result.stdout == text_of(generate(llm, PROMPTS[0])) + "\n", result.stderr
    assert result.returncode == 0


class Extension:
    """Methods for `collective_rpc`."""

    engine: Any

    def max_model_len(self, more: int, *, times: int = 1) -> int:
        return (int(self.engine.info.max_model_len) + more) * times


def test_functions_and_methods_reach_the_engine() -> None:
    extension = f"{__name__}.Extension"
    args = EngineArgs("demo", **SMALL, enforce_eager=True, worker_extension_cls=extension, disable_log_stats=False)
    with LLM.from_engine_args(args) as llm:
        limit = llm.llm_engine.engine.info.max_model_len
        assert llm.collective_rpc("max_model_len", args=(1,), kwargs={"times": 2}) == [2 * (limit + 1)]
        assert llm.collective_rpc(lambda worker: worker.rank) == [0]
        with pytest.raises(RequestError, match="the worker has no such method"):
            llm.collective_rpc("engine")
        assert llm.get_world_size() == 1
        llm.generate(PROMPTS[0], SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
        found = {each.name.removeprefix("jaxllm:"): each for each in llm.get_metrics()}
        tokens, running, times = (
            found[name] for name in ("generation_tokens", "num_requests_running", "time_to_first_token_seconds")
        )
        assert isinstance(tokens, Counter)
        assert tokens.value == 3
        assert isinstance(running, Gauge)
        assert running.value == 0
        assert isinstance(times, Histogram)
        assert times.count == times.buckets["+Inf"] == 1
        assert times.sum > 0


def test_nothing_is_measured_unless_it_is_asked_for(llm: LLM) -> None:
    with pytest.raises(EngineError, match="disable_log_stats=False"):
        llm.get_metrics()
