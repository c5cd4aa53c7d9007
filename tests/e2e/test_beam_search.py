"""Beam search in the engine: the beams of `transformers`, on `demo` and on a small random Llama."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from jaxllm import LLM, BeamSearchParams
from jaxllm.engine.engine import Engine
from jaxllm.errors import RequestError
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.outputs import RankedSequence
from jaxllm.requests.request import Request
from jaxllm.serving.llm import llm_engine
from tests.e2e.driving import make_engine, request

TEXTS = ("Once upon a time", "1 + 2 =", "The cat")
SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "max_model_len": 128}


@pytest.fixture(scope="module")
def beam_engine() -> Iterator[Engine]:
    """Small pages, so that many are shared, and few places."""
    engine = make_engine(**SMALL, block_size=4, num_gpu_blocks_override=200)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(demo_folder: Path) -> Any:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(demo_folder, dtype=torch.float32)


def search(
    engine: Engine, prompts: list[list[int]], options: BeamOptions, others: tuple[Request, ...] = (), **params: Any
) -> list[list[RankedSequence]]:
    """The hypotheses for each prompt, asked for after `others`, which need not be looked at."""
    for other in others:
        engine.add_request(other)
    for index, prompt in enumerate(prompts):
        engine.add_request(request(index, prompt, temperature=0, beam_search=options, **params))
    found: dict[str, list[RankedSequence]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.sequences is not None:
                assert not output.token_ids
                found[output.request_id] = output.sequences
    engine.scheduler.check_integrity()
    assert engine.pages.num_held_pages == 0
    return [found[str(index)] for index in range(len(prompts))]


def of_transformers(model: Any, prompt: list[int], width: int, max_tokens: int, **options: Any) -> Any:
    with torch.no_grad():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=max_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            pad_token_id=0,
            **options,
        )
    ends = options["eos_token_id"] or []
    for sequence, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        tokens = sequence[len(prompt) :]
        end = next((place + 1 for place, token in enumerate(tokens) if token in ends), len(tokens))
        yield tokens[:end], score


def assert_same(found: list[RankedSequence], expected: Any) -> None:
    expected = list(expected)
    assert [each.token_ids for each in found] == [tokens for tokens, _ in expected]
    assert np.allclose([each.score for each in found], [score for _, score in expected], atol=1e-3)


@pytest.mark.parametrize(
    ("early_stopping", "length_penalty"), [(False, 1.0), (True, 2.0), ("never", 0.0), ("never", 1.5)]
)
def test_demo_has_the_beams_of_transformers(
    beam_engine: Engine, reference: Any, tokenizer: Any, early_stopping: Any, length_penalty: float
) -> None:
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    options = BeamOptions(width=3, n=3, length_penalty=length_penalty, early_stopping=early_stopping)
    beside = request("beside", prompts[0], temperature=0, max_tokens=20)
    for prompt, found in zip(prompts, search(beam_engine, prompts, options, (beside,), max_tokens=16), strict=True):
        expected = of_transformers(
            reference,
            prompt,
            3,
            16,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            eos_token_id=[0, 2],
        )
        assert_same(found, expected)


def small_llama(folder: Path) -> Any:
    """Random, with grouped heads, and likely to end early."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=[3, 11],
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "caching"), [pytest.param(1, False, marks=pytest.mark.exhaustive), (2, True)])
def test_a_random_llama_has_the_beams_of_transformers(tmp_path: Path, devices: int, caching: bool) -> None:
    """Also on two devices, without prefix caching, and with so few pages that groups are preempted."""
    model = small_llama(tmp_path)
    engine = make_engine(
        model=str(tmp_path),
        dtype="float32",
        **{**SMALL, "max_model_len": 48},
        block_size=4,
        num_gpu_blocks_override=30,
        enable_prefix_caching=caching,
        tensor_parallel_size=devices,
    )
    try:
        prompts = [[5, 9, 2, 8, 4, 7][: 2 + index] for index in range(5)]
        for early_stopping in (False, True):
            options = BeamOptions(width=4, n=4, early_stopping=early_stopping)
            # They need ever more pages, and come first in order.
            others = tuple(request(name, [5, 6], temperature=0, max_tokens=44, ignore_eos=True) for name in "ab")
            for prompt, found in zip(prompts, search(engine, prompts, options, others, max_tokens=22), strict=True):
                expected = of_transformers(
                    model, prompt, 4, 22, length_penalty=1.0, early_stopping=early_stopping, eos_token_id=[3, 11]
                )
                assert_same(found, expected)
        assert engine.scheduler.num_preemptions > 0
    finally:
        engine.close()


def test_the_offline_interface(beam_engine: Engine, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_engine, "_engine_here", lambda _config, _progress: beam_engine)
    llm = LLM("demo")
    # The engine is for the other tests, too.
    llm.llm_engine._finalizer.detach()
    text, width = TEXTS[0], 3
    (output,) = llm.beam_search(text, BeamSearchParams(beam_width=width, max_tokens=8, ignore_eos=True))
    tokenizer = llm.get_tokenizer()
    prompt = tokenizer(text)["input_ids"]
    expected = list(
        of_transformers(reference, prompt, width, 8, length_penalty=1.0, early_stopping=False, eos_token_id=None)
    )
    assert [each.tokens for each in output.sequences] == [prompt + tokens for tokens, _ in expected]
    assert [each.score for each in output.sequences] == pytest.approx([score for _, score in expected], abs=1e-3)
    for each in output.sequences:
        assert each.text == tokenizer.decode(each.tokens)
        assert (each.finish_reason, each.stop_reason) == ("length", None)
        assert len(each.logprobs) == 8
        chosen = [choices[token].logprob for choices, token in zip(each.logprobs, each.tokens[-8:], strict=True)]
        assert each.cum_logprob == pytest.approx(sum(chosen))
    with pytest.raises(RequestError, match="beam_width=9") as caught:
        llm.beam_search(text, BeamSearchParams(beam_width=9, max_tokens=8))
    assert caught.value.parameter == "beam_width"


def test_end_tokens_are_hidden_unless_asked_for(beam_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_engine, "_engine_here", lambda _config, _progress: beam_engine)
    llm = LLM("demo")
    llm.llm_engine._finalizer.detach()
    prompt = llm.render_chat([{"role": "user", "content": "What is 2 plus 3?"}])
    short, whole = (
        llm.beam_search([prompt], BeamSearchParams(beam_width=2, max_tokens=30, include_stop_str_in_output=included))[
            0
        ].sequences[0]
        for included in (False, True)
    )
    assert whole.finish_reason == "stop"
    assert whole.tokens == [*short.tokens, whole.stop_reason]
    assert len(whole.logprobs) == len(short.logprobs)


def test_what_cannot_be_searched_is_refused(beam_engine: Engine) -> None:
    def ask(width: int, **params: Any) -> None:
        beam_engine.add_request(request("x", [5], temperature=0, beam_search=BeamOptions(width=width), **params))

    for width, params, message in (
        (9, {}, "the batch, which has 8 \\(max_num_seqs\\)"),
        (8, {"stop_token_ids": list(range(3, 20))}, "max_logprobs"),
        (8, {"max_tokens": None}, "pages of the KV cache"),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            ask(width, **params)
        assert caught.value.parameter == "beam_width"
    assert not beam_engine.has_unfinished_requests()


def test_a_search_can_be_aborted_at_any_time(beam_engine: Engine) -> None:
    for steps in range(6):
        beam_engine.add_request(
            request("gone", list(range(5, 40)), temperature=0, max_tokens=20, beam_search=BeamOptions(width=5, n=5))
        )
        for _ in range(steps):
            assert not beam_engine.step()
        beam_engine.abort_request(["gone"])
        (output,) = beam_engine.step()
        assert (output.finish_reason, output.sequences) == ("abort", None)
        assert not beam_engine.has_unfinished_requests()
        assert beam_engine.pages.num_held_pages == 0
        beam_engine.scheduler.check_integrity()
