"""The engine: batches, aborts, parameters, and that a text's result does not depend on its neighbours."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError, PromptTooLongError, RequestError
from jaxllm.load import load_engine
from jaxllm.pooling.engine import PoolingEngine
from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.runner import PoolingRunner
from tests.jaxllm.pooling.driving import engine_of, pool, request, run

random = np.random.default_rng(3)
TEXTS = [random.integers(3, 1000, length).tolist() for length in (40, 1, 17, 64, 2, 30, 1, 9, 33, 5)]


@pytest.fixture(scope="module")
def engine() -> Iterator[PoolingEngine]:
    options = {"max_model_len": 64, "pooler_config": {"matryoshka": True}, "enforce_eager": False}
    with engine_of("demo", runner="pooling", **options) as made:
        yield made


def test_neighbours_change_nothing(engine: PoolingEngine) -> None:
    together = pool(engine, TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        (alone,) = pool(engine, [text])
        # Another shape may be compiled to another order of additions; the same one may not.
        np.testing.assert_allclose(vector, alone, atol=1e-6, rtol=0)
    fill = random.integers(3, 1000, 23).tolist()
    for text in (TEXTS[5], TEXTS[0]):
        first, _ = pool(engine, [text, TEXTS[2][: 64 - len(text)]])
        _, last = pool(engine, [fill[: 64 - len(text)], text])
        assert (first == last).all()


def test_whole_texts_are_packed_in_order(engine: PoolingEngine) -> None:
    for index, text in enumerate(TEXTS):
        engine.add_request(request(str(index), text))
    steps = []
    while engine.has_unfinished_requests():
        steps.append([output.request_id for output in engine.step()])
        stats = engine.stats()
        assert stats.num_rows == len(steps[-1])
        assert stats.num_tokens <= stats.bucket_tokens == 64
    assert [set(step) for step in steps] == [{"0", "1", "2"}, {"3"}, {"4", "5", "6", "7"}, {"8", "9"}]
    stats = engine.stats()
    assert stats.num_waiting == stats.num_running == stats.num_compilations == 0


@pytest.mark.parametrize("error", [IndexError("injected"), MemoryError()])
def test_a_text_whose_result_cannot_be_read_ends_alone(
    engine: PoolingEngine, monkeypatch: pytest.MonkeyPatch, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    expected = pool(engine, TEXTS[:3])
    original = PoolingRunner._result

    def failing(self: PoolingRunner, asked: Any, *rest: Any) -> Any:
        if asked.request_id == "1":
            raise error
        return original(self, asked, *rest)

    monkeypatch.setattr(PoolingRunner, "_result", failing)
    for index, text in enumerate(TEXTS[:3]):
        engine.add_request(request(str(index), text))
    found = {output.request_id: output for output in engine.step()}
    first, wrong, last = (found[name] for name in "012")
    assert wrong.is_fault
    assert wrong.refusal == "internal error; the server's log has the details of request 1"
    assert wrong.finish_reason == "abort"
    for output, vector in ((first, expected[0]), (last, expected[2])):
        assert output.data is not None
        assert np.array_equal(output.data, vector)
    assert "an internal error ends request 1" in caplog.text
    assert not engine.has_unfinished_requests()


def test_aborted_texts_end_and_give_nothing(engine: PoolingEngine) -> None:
    for index, text in enumerate(TEXTS[:4]):
        engine.add_request(request(str(index), text))
    first = engine.step()
    engine.abort_request(["3", "0", "no such request"])
    rest = engine.step() + (engine.step() if engine.has_unfinished_requests() else [])
    assert [output.request_id for output in first] == ["1", "0", "2"]
    assert [(output.request_id, output.finish_reason, output.data) for output in rest] == [("3", "abort", None)]
    assert not engine.has_unfinished_requests()
    for name in ("1", "0", "10"):
        engine.add_request(request(name, TEXTS[0]))
    engine.abort_request("10")
    pooled = set()
    while engine.has_unfinished_requests():
        pooled |= {output.request_id for output in engine.step() if output.data is not None}
    assert pooled == {"0", "1"}


def test_dimensions_and_normalisation(engine: PoolingEngine) -> None:
    whole, short, plain = run(
        engine,
        [
            request("whole", TEXTS[0]),
            request("short", TEXTS[0], PoolingParams(dimensions=10)),
            request("plain", TEXTS[0], PoolingParams(dimensions=10, normalize=False)),
        ],
    )
    assert (whole.shape, short.shape, plain.shape) == ((128,), (10,), (10,))
    np.testing.assert_allclose(short, whole[:10] / np.linalg.norm(whole[:10]), atol=1e-6, rtol=0)
    np.testing.assert_allclose(plain / np.linalg.norm(plain), short, atol=1e-6, rtol=0)


def test_tokens_of_long_and_short_texts(engine: PoolingEngine) -> None:
    tokens = pool(engine, [TEXTS[3], TEXTS[1]], PoolingParams(task="token_embed", dimensions=7))
    last = pool(engine, [TEXTS[3], TEXTS[1]], PoolingParams(dimensions=7))
    assert [each.shape for each in tokens] == [(64, 7), (1, 7)]
    for each, vector in zip(tokens, last, strict=True):
        np.testing.assert_allclose(each[-1], vector, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("token_ids", "params", "message"),
    [
        ([], {}, "the prompt is empty"),
        ([5, 2000], {}, "prompt token 1 is 2000"),
        ([5], {"task": "classify"}, "supports embed, token_embed"),
        ([5], {"use_activation": True}, "applies to class scores"),
        ([5], {"dimensions": 129}, "have 128"),
        ([5], {"step_tag_id": 3}, "step_tag_id: requires task='token_classify'"),
    ],
)
def test_wrong_requests(engine: PoolingEngine, token_ids: list[int], params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine.add_request(request("x", token_ids, PoolingParams(**params)))
    with pytest.raises(PromptTooLongError, match="has 65 tokens"):
        engine.add_request(request("x", [5] * 65))
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"task": "embedd"}, "did you mean 'embed'"),
        ({"dimensions": 0}, "dimensions=0: must be at least 1"),
        ({"truncate_prompt_tokens": -2}, "must be at least 1, or -1"),
        ({"normalize": 1}, "must be true or false"),
        ({"softmax": True, "activation": False}, "are synonyms"),
        ({"normalise": True}, "did you mean 'normalize'"),
        ({"step_tag_id": -3}, "must be an integer of at least 0"),
        ({"returned_token_ids": [0, True]}, "returned_token_ids: True must be an integer"),
    ],
)
def test_wrong_parameters(params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        PoolingParams(**params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runner": "pooling", "convert": "none"}, "convert='none': LlamaForCausalLM is a generative model"),
        ({"runner": "pooling", "pooler_config": {"pooling_tpye": "last"}}, "did you mean 'pooling_type'"),
        ({"runner": "pooling", "pooler_config": {"pooling_type": "max"}}, "choose one of last, mean, cls"),
        ({"runner": "pooling", "pooler_config": {"tok_pooling_type": "LAST"}}, "choose one of all, step"),
        ({"runner": "pooling", "pooler_config": {"pooling_type": "STEP"}}, "requires step_tag_id"),
        ({"runner": "pooling", "pooler_config": {"task": "classify"}}, "supports embed, token_embed"),
        ({"runner": "pooling", "tensor_parallel_size": 2}, "one device; start several servers"),
        ({"convert": "classify"}, "score.weight"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_engine(EngineConfig.from_options({"model": "demo", "max_model_len": 32, "enforce_eager": True, **options}))
