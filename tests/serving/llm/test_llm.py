"""`LLM` over a scripted engine: order, errors, interruption, freeing."""

import asyncio
import gc
import json
import os
import signal
import threading
import weakref
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm import LLM, SamplingParams
from jaxllm.config import ModelOptions
from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import ConfigError, EngineError, RequestError, RequestFaultError
from jaxllm.requests.outputs import EngineOutput
from jaxllm.serving.llm.llm_engine import LLMEngine
from jaxllm.serving.llm.loading import default_params, read_default_params
from jaxllm.serving.text.input_processor import InputProcessor
from jaxllm.serving.text.outputs import RequestOutput
from jaxllm.serving.text.prompts import Prompt
from jaxllm.serving.text.tokenizer import Tokenizer

END = 2
Make = Callable[..., tuple[Any, LLM]]


@pytest.fixture
def make(tokenizer: Tokenizer, scripted_engine: type, monkeypatch: pytest.MonkeyPatch) -> Make:
    """(scripted engine, LLM over it). Every request generates its first token id as often as that is past 100."""

    def build(**options: Any) -> tuple[Any, LLM]:
        scripted = scripted_engine(
            lambda request: chain([int(request.prompt_token_ids[0])] * (request.prompt_token_ids[0] - 100), repeat(END))
        )
        inputs = InputProcessor(tokenizer, RequestLimits(vocab_size=360, max_model_len=100, max_logprobs=5), [END])
        default = SamplingParams(max_tokens=50)
        monkeypatch.setattr(
            "jaxllm.serving.llm.llm.open_engine", lambda *_, **__: LLMEngine(scripted, tokenizer, inputs, default)
        )
        return scripted, LLM(**options)

    return build


def lengths(outputs: list[RequestOutput]) -> list[int]:
    return [len(output.outputs[0].token_ids) for output in outputs]


def test_results_are_in_the_order_of_the_prompts(make: Make) -> None:
    _, llm = make()
    prompts: list[Prompt] = [[109], [103], {"prompt_token_ids": [106]}, [101]]
    outputs = llm.generate(prompts, use_tqdm=False)
    assert lengths(outputs) == [10, 4, 7, 2]
    assert [output.request_id for output in outputs] == ["0", "1", "2", "3"]
    assert lengths(llm.generate([[105]], use_tqdm=False)) == [6]


def test_one_prompt_may_stand_alone(make: Make, tokenizer: Tokenizer) -> None:
    _, llm = make()
    assert lengths(llm.generate([109, 5], use_tqdm=False)) == [10]
    assert lengths(llm.generate({"prompt_token_ids": [103]}, use_tqdm=False)) == [4]
    (output,) = llm.generate("the cat", SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.prompt == "the cat"
    assert output.prompt_token_ids == tokenizer.hf.encode("the cat")
    assert llm.generate([], use_tqdm=False) == []
    with pytest.raises(RequestError, match="expected a string, token IDs, or a list of prompts, got int"):
        llm.generate(5)  # type: ignore[arg-type]


def test_parameters_for_each_prompt(make: Make) -> None:
    _, llm = make()
    params = [SamplingParams(max_tokens=2), SamplingParams(max_tokens=4)]
    assert lengths(llm.generate([[150], [150]], params, use_tqdm=False)) == [2, 4]
    assert lengths(llm.generate([[190]], use_tqdm=False)) == [50], "the default parameters"
    default = llm.get_default_sampling_params()
    default.max_tokens = 1
    assert llm.get_default_sampling_params().max_tokens == 50


def test_one_bad_prompt_queues_nothing(make: Make) -> None:
    engine, llm = make()
    with pytest.raises(RequestError, match="prompt 2: the prompt is empty"):
        llm.generate([[109], [103], []], use_tqdm=False)
    with pytest.raises(RequestError, match="sampling_params: 1 given for 2 prompts"):
        llm.generate([[109], [103]], [SamplingParams()], use_tqdm=False)
    assert engine.added == []
    assert lengths(llm.generate([[103]], use_tqdm=False)) == [4]


def test_chat_makes_prompts_of_conversations(make: Make, tokenizer: Tokenizer) -> None:
    _, llm = make()
    talk = [{"role": "user", "content": "the cat"}]
    one = llm.chat(talk, SamplingParams(max_tokens=1), use_tqdm=False)
    two = llm.chat([talk, talk], SamplingParams(max_tokens=1), use_tqdm=False)
    want = tokenizer.hf.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    assert [output.prompt_token_ids for output in (*one, *two)] == [want] * 3
    with pytest.raises(RequestError, match=r"conversation 1: messages: the list is empty"):
        llm.chat([talk, []], use_tqdm=False)
    with pytest.raises(RequestError, match=r"^messages: the list is empty"):
        llm.chat([], use_tqdm=False)


def test_a_chat_template_for_all(make: Make, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages[0].content }}!")
    _, llm = make(chat_template=str(tmp_path / "t.jinja"))
    talk = [{"role": "user", "content": "the cat"}]
    (output,) = llm.chat(talk, SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.prompt == "the cat!"
    (output,) = llm.chat(talk, SamplingParams(max_tokens=1), use_tqdm=False, chat_template="own")
    assert output.prompt == "own"


def fail_in_step(scripted: Any, number: int, names: set[str], *, is_fault: bool) -> None:
    """Let the engine end these requests in the step of this number."""
    original = scripted.step

    def step() -> list[EngineOutput]:
        ended = [name for name in scripted.running if name in names] if scripted.steps == number else []
        for name in ended:
            del scripted.running[name]
        refused = [
            EngineOutput(name, [], finish_reason="abort", refusal="internal error", is_fault=is_fault) for name in ended
        ]
        return [*refused, *original()]

    scripted.step = step


@pytest.mark.parametrize("names", [{"1"}, {"0", "3"}, {"0", "1", "2", "3"}])
def test_what_fails_for_one_prompt_does_not_lose_the_others(make: Make, names: set[str]) -> None:
    scripted, llm = make()
    fail_in_step(scripted, 1, names, is_fault=True)
    prompts: list[Prompt] = [[109], [106], [103], [112]]
    with pytest.raises(RequestFaultError, match=r"request \d: internal error") as caught:
        llm.generate(prompts, use_tqdm=False)
    assert caught.value.results is not None
    found = [None if each is None else len(each.outputs[0].token_ids) for each in caught.value.results]
    assert found == [None if str(place) in names else length for place, length in enumerate((10, 7, 4, 13))]
    assert not scripted.aborted
    assert lengths(llm.generate([[103]], use_tqdm=False)) == [4]


def test_what_fails_while_it_is_queued(make: Make) -> None:
    scripted, llm = make()
    fail_in_step(scripted, 1, {"0"}, is_fault=True)
    llm.enqueue([[109], [106]])
    # Beneath another call, whose result is there.
    assert lengths(llm.generate([[103]], use_tqdm=False)) == [4]
    with pytest.raises(RequestFaultError, match="request 0: internal error") as caught:
        llm.wait_for_completion(use_tqdm=True)
    assert caught.value.results is not None
    assert caught.value.results[0] is None
    assert lengths(caught.value.results[1:]) == [7]
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_a_request_that_is_refused_ends_its_call(make: Make) -> None:
    scripted, llm = make()
    fail_in_step(scripted, 1, {"1"}, is_fault=False)
    with pytest.raises(RequestError, match="request 1: internal error") as caught:
        llm.generate([[109], [106]], use_tqdm=False)
    assert not isinstance(caught.value, RequestFaultError)
    assert scripted.aborted == ["0"]


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown option 'max_model_length'; did you mean 'max_model_len'"):
        LLM(max_model_length=5)


def test_options_of_vllm_that_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    from jaxllm.serving.llm import llm

    neutral: dict[str, Any] = {
        "pipeline_parallel_size": 1, "kv_cache_dtype": "auto", "quantization": None, "enable_lora": False,
        "swap_space": 0, "cpu_offload_gb": 0.0, "hf_overrides": {}, "disable_custom_all_reduce": False,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="unknown option 'max_model_length'"):
        LLM(trust_remote_code=True, max_model_length=5, **neutral)
    assert [record.getMessage() for record in caplog.records if record.name == llm.__name__] == [
        "trust_remote_code has no effect: code from model repositories is never run",
    ]
    with pytest.raises(ConfigError, match=r"^decode_context_parallel_size=2: .*--tensor-parallel-size"):
        LLM(decode_context_parallel_size=2)


def test_ctrl_c_leaves_the_llm_usable(make: Make) -> None:
    engine, llm = make()
    ended_steps = []

    def interrupt_third_step() -> None:
        if engine.steps == 3:
            os.kill(os.getpid(), signal.SIGINT)
        ended_steps.append(engine.steps)

    engine.on_step = interrupt_third_step
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[150], [140]], use_tqdm=False)
    assert ended_steps == [1, 2, 3], "the step was torn apart, or another began"
    assert engine.running == {}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert lengths(llm.generate([[103]], use_tqdm=False)) == [4]


def test_an_engine_error_leaves_nothing_queued(make: Make) -> None:
    engine, llm = make()

    def fail() -> None:
        raise EngineError("broken")

    engine.on_step = fail
    with pytest.raises(EngineError, match="broken"):
        llm.generate([[150]], use_tqdm=False)
    assert engine.running == {}


def test_works_inside_a_running_event_loop(make: Make) -> None:
    _, llm = make()

    async def cell() -> list[int]:
        return lengths(llm.generate([[103]], use_tqdm=False))

    assert asyncio.run(cell()) == [4]


def test_threads_take_turns(make: Make) -> None:
    _, llm = make()
    results: dict[int, list[int]] = {}

    def work(length: int) -> None:
        results[length] = lengths(llm.generate([[100 + length]] * 3, use_tqdm=False))

    threads = [threading.Thread(target=work, args=(length,)) for length in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {length: [length + 1] * 3 for length in range(1, 9)}


def test_closing(make: Make) -> None:
    engine, llm = make()
    with llm:
        assert not engine.closed
    assert engine.closed
    llm.close()
    with pytest.raises(EngineError, match="closed: create a new one"):
        llm.generate("x")


def test_the_last_reference_frees_the_engine_at_once(make: Make) -> None:
    engine, llm = make()
    llm.generate([[103]], use_tqdm=False)
    gone = weakref.ref(llm.llm_engine)
    gc.disable()
    try:
        del llm
        assert engine.closed
        assert gone() is None, "a cycle keeps it until the garbage collector runs"
    finally:
        gc.enable()


def test_progress_bar(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    _, llm = make()
    llm.generate([[103], [105]])
    shown = capsys.readouterr().err
    assert "Processed prompts: 100%" in shown
    assert "2/2" in shown
    assert "output:" in shown
    llm.generate([[103]], use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_a_bar_of_the_callers(make: Make) -> None:
    class Bar:
        def __init__(self, **settings: Any) -> None:
            bars.append(self)
            self.total, self.done, self.text = settings["total"], 0, ""

        def update(self, count: int) -> None:
            self.done += count

        def set_postfix_str(self, text: str, *, refresh: bool) -> None:
            self.text = text

        def close(self) -> None:
            self.done *= 10

    bars: list[Bar] = []
    _, llm = make()
    llm.generate([[103], [105]], use_tqdm=Bar)
    assert (bars[0].total, bars[0].done) == (2, 20)
    assert "toks/s" in bars[0].text


def test_default_parameters_come_from_the_generation_config(tmp_path: Path) -> None:
    assert read_default_params(tmp_path) == SamplingParams()
    path = tmp_path / "generation_config.json"
    path.write_text(
        json.dumps({"temperature": 0.5, "top_k": 7, "max_new_tokens": 9, "eos_token_id": [1], "min_p": None})
    )
    assert read_default_params(tmp_path) == SamplingParams(temperature=0.5, top_k=7, max_tokens=9)
    for wrong in ('{"temperature": -1}', "{", "[]"):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=r"generation_config\.json: "):
            read_default_params(tmp_path)


def test_outputs_show_themselves_in_a_notebook(make: Make) -> None:
    _, llm = make()
    (output,) = llm.generate("<b>", SamplingParams(max_tokens=1), use_tqdm=False)
    html = output._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<table>" in html
    assert "CompletionOutput(index=0, text=" in repr(output)


def test_an_llm_says_what_it_is(make: Make) -> None:
    _, llm = make()
    assert repr(llm) == "LLM('scripted', max_model_len=32, max_num_seqs=8, dtype='float32', device='cpu')"
    llm.close()
    assert repr(llm) == "LLM(closed)"


def test_a_stream_brings_what_generate_does_in_pieces(make: Make) -> None:
    engine, llm = make()
    steps, deltas = [], []
    params = SamplingParams(max_tokens=4)
    for delta in llm.stream([300, 5], params):
        steps.append(engine.steps)
        deltas.append(delta)
    assert [delta.token_ids for delta in deltas] == [[300]] * 4
    assert [delta.finish_reason for delta in deltas] == [None, None, None, "length"]
    assert steps == [1, 2, 3, 4], "each as its step brings it"
    (output,) = llm.generate([300, 5], params, use_tqdm=False)
    assert "".join(delta.text for delta in deltas) == output.outputs[0].text


def test_deltas_of_many_prompts_say_whose_they_are(make: Make) -> None:
    _, llm = make()
    seen: dict[tuple[int, int], int] = {}
    for delta in llm.stream([[109], [103], [106]], SamplingParams(n=2, max_tokens=50)):
        key = (delta.prompt_index, delta.index)
        seen[key] = seen.get(key, 0) + len(delta.token_ids)
    assert seen == {(0, 0): 10, (0, 1): 10, (1, 0): 4, (1, 1): 4, (2, 0): 7, (2, 1): 7}
    talk = [{"role": "user", "content": "the cat"}]
    (whole,) = llm.chat(talk, SamplingParams(max_tokens=3), use_tqdm=False)
    parts = list(llm.stream_chat(talk, SamplingParams(max_tokens=3)))
    assert [token for part in parts for token in part.token_ids] == whole.outputs[0].token_ids
    assert list(llm.stream([])) == []


def test_a_stream_that_is_left_early_ends_its_request(make: Make) -> None:
    engine, llm = make()
    for delta in llm.stream([300]):
        assert delta.token_ids == [300]
        break
    assert engine.aborted == ["0"]
    stream = llm.stream([300])
    next(stream)
    stream.close()
    assert engine.aborted == ["0", "1"]
    llm.stream([300])  # never begun: nothing was queued
    assert (engine.running, len(engine.added)) == ({}, 2)
    next(closed := llm.stream([300]))
    llm.close()
    with pytest.raises(EngineError, match="closed"):
        next(closed)


def test_a_stream_checks_its_arguments_at_once(make: Make) -> None:
    engine, llm = make()
    with pytest.raises(RequestError, match="prompt 1: the prompt is empty"):
        llm.stream([[109], []])
    with pytest.raises(RequestError, match="cannot be streamed"):
        llm.stream([109], SamplingParams(best_of=2))
    assert engine.added == []


def test_other_calls_of_the_same_thread_go_on_beside_a_stream(make: Make) -> None:
    engine, llm = make()
    one, other = llm.stream([110]), llm.stream([105])
    count, begun = 0, list[int]()
    for delta in one:
        count += len(delta.token_ids)
        if not begun:
            assert lengths(llm.generate([[108]], use_tqdm=False)) == [9]
            begun = next(other).token_ids
    assert count == 11
    assert len(begun) + sum(len(delta.token_ids) for delta in other) == 6
    # A stream that is dropped while a call steps the engine, as the garbage collector may do.
    kept = [llm.stream([300])]
    next(kept[0])
    engine.on_step = lambda: kept.clear() if kept else None
    assert lengths(llm.generate([[103]], use_tqdm=False)) == [4]
    assert engine.running == {}


def test_where_default_parameters_come_from(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder, temperature in ((own, 0.5), (other, 0.25)):
        folder.mkdir()
        (folder / "generation_config.json").write_text(json.dumps({"temperature": temperature, "top_k": 7}))
    assert default_params(ModelOptions(), own) == SamplingParams(temperature=0.5, top_k=7)
    assert default_params(ModelOptions(generation_config="vllm"), own) == SamplingParams()
    assert default_params(ModelOptions(generation_config=str(other)), own) == SamplingParams(temperature=0.25, top_k=7)
    override = ModelOptions(override_generation_config={"temperature": 0, "max_new_tokens": 3, "do_sample": True})
    assert default_params(override, own) == SamplingParams(temperature=0, top_k=7, max_tokens=3)
    for wrong in (ModelOptions(generation_config="x"), ModelOptions(override_generation_config={"top_p": 7})):
        with pytest.raises(ConfigError, match="generation_config="):
            default_params(wrong, own)


def test_queued_prompts_run_beneath_other_calls(make: Make) -> None:
    _, llm = make()
    first = llm.enqueue([[109], [103]])
    second = llm.enqueue([140], SamplingParams(max_tokens=3))
    assert (first, second) == (["0", "1"], ["2"])
    assert lengths(llm.generate([[120]], use_tqdm=False)) == [21]
    outputs = llm.wait_for_completion(RequestOutput, use_tqdm=False)
    assert [output.request_id for output in outputs] == ["0", "1", "2"]
    assert lengths(outputs) == [10, 4, 3]
    assert llm.wait_for_completion(use_tqdm=False) == []
    with pytest.raises(TypeError, match="RequestOutput"):
        llm.wait_for_completion(int)
    with pytest.raises(RequestError, match="prompt is empty"):
        llm.enqueue([[]])
    assert lengths(llm.generate([[103]], use_tqdm=False)) == [4]


def test_queued_conversations_are_prompts_of_the_template(make: Make) -> None:
    scripted, llm = make(chat_template="{% for each in messages %}{{ each.content }}{% endfor %}")
    one = SamplingParams(max_tokens=1)
    talks: list[Any] = [[{"role": "user", "content": text}] for text in ("the cat", "a dog")]
    assert llm.enqueue_chat(talks, one) == ["0", "1"]
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.prompt for output in outputs] == [output.prompt for output in llm.chat(talks, one, use_tqdm=False)]
    assert list(scripted.added[0].prompt_token_ids) == list(scripted.added[2].prompt_token_ids)
    with pytest.raises(RequestError, match="lora_request"):
        llm.enqueue_chat(talks, one, lora_request=object())  # type: ignore[arg-type]


def test_other_calls_keep_what_comes_of_requests_that_are_stepped_by_hand(make: Make) -> None:
    _, llm = make()
    engine = llm.llm_engine
    engine.add_request("mine", [103], SamplingParams(max_tokens=4))
    assert lengths(llm.generate([[120]], use_tqdm=False)) == [21]
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert {output.request_id for output in outputs} == {"mine"}
    assert outputs[-1].finished
    assert lengths(outputs[-1:]) == [4]


def test_arrays_of_texts_are_prompts(make: Make) -> None:
    """As a column of a table is."""
    _, llm = make()
    one = SamplingParams(max_tokens=1)
    columns: list[Any] = [np.array(["the cat", "a dog"]), np.array(["the cat", "a dog"], object)]
    for column in columns:
        outputs = llm.generate(column, one, use_tqdm=False)
        assert [output.prompt for output in outputs] == ["the cat", "a dog"]
    ids: Any = np.array([[109, 5], [103, 5]])
    assert lengths(llm.generate(ids[0], use_tqdm=False)) == [10]
    assert lengths(llm.generate(ids, use_tqdm=False)) == [10, 4]


def test_vllms_arguments_for_what_there_is_not(make: Make) -> None:
    _, llm = make()
    assert lengths(llm.generate([[103]], use_tqdm=False, lora_request=None, mm_processor_kwargs={})) == [4]
    assert lengths(llm.generate([[103], [104]], use_tqdm=False, priority=3)) == [4, 5]
    with pytest.raises(RequestError, match=r"lora_request: expected a LoRARequest") as error:
        llm.generate([[103]], lora_request="sql")  # type: ignore[arg-type]
    assert error.value.parameter == "lora_request"
    talk = [{"role": "user", "content": "the cat"}]
    with pytest.raises(RequestError, match="must be one of auto, string, openai"):
        llm.chat(talk, chat_template_content_format="list")
    parts = "{% for p in messages[0].content %}{{ p.text }}!{% endfor %}"
    (of_parts,) = llm.chat(talk, chat_template=parts, chat_template_content_format="openai")
    assert of_parts.prompt == "the cat!"
    (positional,) = llm.chat(talk, SamplingParams(max_tokens=1), False, None, None, "{{ messages[0].content }}?")
    assert positional.prompt == "the cat?"
    with pytest.raises(EngineError, match="another process"):
        llm.collective_rpc("anything")
    assert llm.collective_rpc("update_config", args=({"load_config": {"load_format": "auto"}},)) == [None]
    for wrong in ({"load_config": {"load_format": "dummy"}}, {"model_config": {"dtype": "float16"}}):
        with pytest.raises(RequestError, match="update_config: "):
            llm.collective_rpc("update_config", args=(wrong,))
    with pytest.raises(EngineError, match="collective_rpc to reach the engine"):
        llm.apply_model(print)
    with pytest.raises(ConfigError, match=r"give package\.module\.Class"):
        LLM(worker_extension_cls="no.such.Class")
