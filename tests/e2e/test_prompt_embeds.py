"""Prompts that are embeddings: as `transformers` has them, and as tokens where they are the model's own rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from jaxllm.engine.engine import Engine
from jaxllm.errors import ConfigError, RequestError
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.prompt_embeds import NO_TOKEN, PromptEmbeds
from jaxllm.requests.request import Request
from tests.e2e.driving import make_engine, request, run
from tests.models.every_family import FAMILIES


@pytest.fixture(scope="module")
def embeds_engine() -> Iterator[Engine]:
    """Small enough for chunks and preemption: 16 pages of 16 tokens, chunks of at most 32."""
    engine = make_engine(
        enable_prompt_embeds=True, max_model_len=192, max_num_seqs=4, max_num_batched_tokens=32,
        num_gpu_blocks_override=17, max_logprobs=3,
    )  # fmt: skip
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(demo_folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(demo_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def table(reference: Any) -> np.ndarray:
    rows: np.ndarray = reference.get_input_embeddings().weight.detach().numpy()
    return rows


def given(name: object, rows: np.ndarray, token_ids: list[int] | None = None, **params: object) -> Request:
    """A request for embeddings, or for `token_ids` where some are `NO_TOKEN`."""
    made = request(name, [NO_TOKEN] * len(rows) if token_ids is None else token_ids, **params)
    made.prompt_embeds = PromptEmbeds.of(rows, made.prompt_token_ids, 16)
    return made


def greedy(reference: Any, rows: np.ndarray, count: int, **options: Any) -> list[int]:
    """Tokens that `transformers` continues embeddings with."""
    inputs = torch.from_numpy(rows)[None]
    found = reference.generate(
        inputs_embeds=inputs, max_new_tokens=count, do_sample=False, eos_token_id=None, **options
    )
    return [int(token) for token in found[0]]


def test_rows_that_are_no_tokens(embeds_engine: Engine, reference: Any, table: np.ndarray) -> None:
    # As soft prompts are: vectors of the size of rows, far from each of them.
    noise = np.random.default_rng(0).normal(0, float(table.std()), (70, table.shape[1])).astype(np.float32)
    cases = [noise[:1], noise[:33], noise, table[5:90] + noise[:1]]
    answers = run(
        embeds_engine,
        [given(i, rows, temperature=0, max_tokens=12, ignore_eos=True) for i, rows in enumerate(cases)],
    )
    for index, rows in enumerate(cases):
        assert answers[str(index)].token_ids == greedy(reference, rows, 12), index


def test_the_models_own_rows_are_its_tokens(embeds_engine: Engine, table: np.ndarray, prompts: list[list[int]]) -> None:
    chosen = [prompt for prompt in prompts if 20 < len(prompt) < 120][:10]
    params: dict[str, Any] = {"max_tokens": 40, "temperature": 0.8, "logprobs": 2, "ignore_eos": True}
    embeds_engine.reset_prefix_cache()
    tokens = run(embeds_engine, [request(i, prompt, seed=i, **params) for i, prompt in enumerate(chosen)])
    before = embeds_engine.scheduler.num_preemptions
    # Besides them run the same prompts as tokens, and as tokens and embeddings by turns.
    requests = []
    for index, prompt in enumerate(chosen):
        mixed = [NO_TOKEN if place % 3 else token for place, token in enumerate(prompt)]
        rows = table[[token for place, token in enumerate(prompt) if place % 3]]
        requests += [
            given(f"embeds-{index}", table[prompt], seed=index, **params),
            request(f"tokens-{index}", prompt, seed=index, **params),
            given(f"mixed-{index}", rows, mixed, seed=index, **params),
        ]
    answers = run(embeds_engine, requests)
    assert embeds_engine.scheduler.num_preemptions > before
    for name, answer in answers.items():
        expected = tokens[name.split("-")[1]]
        assert answer.token_ids == expected.token_ids, name
        own, theirs = ([each.logprob for each in given.logprobs] for given in (answer, expected))
        np.testing.assert_allclose(own, theirs, atol=1e-4, err_msg=name)


def test_prefixes_are_shared_by_equal_embeddings(embeds_engine: Engine, table: np.ndarray) -> None:
    rows = table[10:58]
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
    changed = rows.copy()
    changed[40, 7] = np.nextafter(changed[40, 7], np.inf, dtype=np.float32)
    every_second = [NO_TOKEN, 5] * 24

    def cached(first: Request, second: Request) -> int:
        """Of the second, after the first."""
        embeds_engine.reset_prefix_cache()
        run(embeds_engine, [first])
        (answer,) = run(embeds_engine, [second]).values()
        return answer.num_cached_tokens

    salted = given("1", rows, **params)
    salted.cache_salt = "another"
    # The last token is always computed, so the last page is not taken.
    assert cached(given("1", rows, **params), given("2", rows, **params)) == 32
    assert cached(given("1", rows, **params), given("2", np.concatenate([rows, rows]), **params)) == 48
    assert cached(given("1", rows, **params), given("2", changed, **params)) == 32
    assert cached(given("1", changed[40:], **params), given("2", rows[40:], **params)) == 0
    assert cached(salted, given("2", rows, **params)) == 0
    # Nor are they tokens, nor rows in other places.
    assert cached(given("1", rows, **params), request("2", range(10, 58), **params)) == 0
    mixed = given("1", rows[:24], every_second, **params)
    assert cached(mixed, given("2", rows[:24], every_second[::-1], **params)) == 0
    # What an answer adds to a prompt's last page belongs to these embeddings.
    for last, expected in ((rows[39], 48), (changed[40], 32)):
        first = given("1", rows[:40], **params)
        run(embeds_engine, [first])
        own = [*[NO_TOKEN] * 40, *first.output_token_ids, 5]
        more = given("2", np.concatenate([rows[:39], last[None]]), own, **params)
        (found,) = run(embeds_engine, [more]).values()
        assert found.num_cached_tokens == expected
        embeds_engine.reset_prefix_cache()


def test_penalties_and_searches(
    embeds_engine: Engine, reference: Any, table: np.ndarray, prompts: list[list[int]]
) -> None:
    prompt = next(prompt for prompt in prompts if 20 < len(prompt) < 60)
    rows = table[prompt]
    # Embeddings have no tokens to punish: only those of the answer are.
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
    (found,) = run(embeds_engine, [given("embeds", rows, repetition_penalty=1.4, **params)]).values()
    with pytest.warns(UserWarning, match="only to newly generated tokens"):
        assert found.token_ids == greedy(reference, rows, 16, repetition_penalty=1.4)
    search = {**params, "beam_search": BeamOptions(width=3, n=3), "max_tokens": 8}
    as_tokens = run(embeds_engine, [request("tokens", prompt, **search)])["tokens"]
    as_embeds = run(embeds_engine, [given("embeds", rows, **search)])["embeds"]
    assert as_tokens.sequences
    assert as_embeds.sequences
    assert [each.token_ids for each in as_embeds.sequences] == [each.token_ids for each in as_tokens.sequences]


def test_an_abort_within_a_prompt(embeds_engine: Engine, reference: Any, table: np.ndarray) -> None:
    embeds_engine.reset_prefix_cache()
    embeds_engine.add_request(given("gone", table[5:150], temperature=0, max_tokens=8))
    embeds_engine.step()
    embeds_engine.abort_request("gone")
    # In the same slot; `run` checks that no page is held.
    after = request("after", range(5, 60), temperature=0, max_tokens=8, ignore_eos=True)
    assert run(embeds_engine, [after])["after"].token_ids == greedy(reference, table[5:60], 8)


def test_bad_embeddings(embeds_engine: Engine, table: np.ndarray) -> None:
    with pytest.raises(RequestError, match="rows have 64 values, but the model's embeddings have 128") as raised:
        embeds_engine.add_request(given("narrow", table[:4, :64]))
    assert raised.value.parameter == "prompt_embeds"
    with pytest.raises(RequestError, match="cannot be combined with prompt_embeds"):
        embeds_engine.add_request(given("logprobs", table[:4], prompt_logprobs=1))
    with pytest.raises(RequestError, match="prompt token 0 is -2"):
        embeds_engine.add_request(request("tokens", [NO_TOKEN]))
    assert not embeds_engine.has_unfinished_requests()


def test_an_engine_without_them(engine: Engine, table: np.ndarray) -> None:
    assert engine.info.embedding_size is None
    with pytest.raises(RequestError, match="--enable-prompt-embeds"):
        engine.add_request(given("embeds", table[:4]))


def test_engines_that_cannot_have_them() -> None:
    with pytest.raises(ConfigError, match="enable_prompt_embeds: not supported by pipeline_parallel_size=2"):
        make_engine(enable_prompt_embeds=True, pipeline_parallel_size=2)


# Scales in the table and after it, and learned positions.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gemma3", "gpt2", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("minicpm3", "granite"))]
)
def test_what_is_behind_the_rows(tmp_path: Path, name: str) -> None:
    model = FAMILIES[name].save(tmp_path).eval()
    embed: Any = model.get_input_embeddings()
    small = {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16}
    engine = make_engine(model=str(tmp_path), dtype="float32", enable_prompt_embeds=True, **small)
    with torch.no_grad():
        rows = embed(torch.arange(5, 24))
        rows += torch.randn(rows.shape, generator=torch.Generator().manual_seed(0)) * rows.std() / 4
        made = given("embeds", rows.numpy(), temperature=0, max_tokens=8, ignore_eos=True)
        answer = run(engine, [made])["embeds"].token_ids
        engine.close()
        logits = model(inputs_embeds=torch.cat([rows, embed(torch.tensor(answer))])[None]).logits[0, 18:-1].numpy()
    np.testing.assert_allclose(logits[np.arange(8), answer], logits.max(axis=-1), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"), [("gemma3n", "looks up token IDs"), ("opt-norms-behind-narrow", "projected")]
)
def test_families_without_them(tmp_path: Path, name: str, reason: str) -> None:
    FAMILIES[name].save(tmp_path)
    with pytest.raises(ConfigError, match=f"enable_prompt_embeds: .*{reason}"):
        make_engine(model=str(tmp_path), enable_prompt_embeds=True)
