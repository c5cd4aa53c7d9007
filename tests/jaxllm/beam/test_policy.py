"""The rules of beam search against `transformers`: the same model, the same logits, the same hypotheses."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from jaxllm.beam import tree as tree_module
from jaxllm.beam.policy import BeamSearch, Candidates
from jaxllm.requests.beam_options import BeamOptions

VOCABULARY = 24


@cache
def small_llama(seed: int) -> Any:
    """A random model whose next tokens are neither certain nor all alike."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=1.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    return LlamaForCausalLM(config).eval()


def reference(model: Any, prompt: list[int], ends: list[int], max_tokens: int, **options: Any) -> list[Any]:
    """The beams that `transformers` finds: token ids up to the end token, and scores."""
    width = options["num_beams"]
    with torch.no_grad():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_return_sequences=width,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    hypotheses = []
    for sequence, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        tokens = sequence[len(prompt) :]
        end = next((place + 1 for place, token in enumerate(tokens) if token in ends), len(tokens))
        hypotheses.append((tokens[:end], score))
    return hypotheses


def search(model: Any, prompt: list[int], ends: list[int], max_tokens: int, options: BeamOptions) -> BeamSearch:
    made = BeamSearch(options, frozenset(ends), max_tokens)
    while not made.done:
        texts = [[*prompt, *(link.token_id for link in beam.last.chain())] for beam in made.beams] or [prompt]
        with torch.no_grad():
            logits = model(torch.tensor(texts)).logits[:, -1]
        top = torch.topk(torch.log_softmax(logits.float(), dim=-1), made.num_candidates)
        made.advance(
            [
                Candidates(ids.numpy().astype(np.int32), values.numpy())
                for ids, values in zip(top.indices, top.values, strict=True)
            ]
        )
    return made


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.5, -1.0])
@pytest.mark.parametrize("ends", [[3], [1, 5, 7, 11], []], ids=["one end", "four ends", "no end"])
def test_the_same_hypotheses_as_transformers(early_stopping: Any, length_penalty: float, ends: list[int]) -> None:
    for seed, width in ((1, 2), (3, 4)):
        model, prompt, max_tokens = small_llama(seed), [4, 9, seed + 1], 4 + 3 * seed
        options = BeamOptions(width=width, n=width, length_penalty=length_penalty, early_stopping=early_stopping)
        found = search(model, prompt, ends, max_tokens, options)
        expected = reference(
            model,
            prompt,
            ends,
            max_tokens,
            num_beams=width,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
        )
        tokens = [[link.token_id for link in each.last.chain()] for each in found.best]
        assert tokens == [tokens for tokens, _ in expected]
        assert np.allclose([each.score for each in found.best], [score for _, score in expected], atol=1e-4)
        for each, own in zip(found.best, tokens, strict=True):
            assert each.reason == ("stop" if own[-1] in ends else "length")
            assert each.total == pytest.approx(each.score * len(own) ** length_penalty)


def test_the_tree_has_every_beam_with_the_sums_of_torch() -> None:
    model, prompt, ends = small_llama(3), [4, 9, 2], [3, 7]
    found = search(model, prompt, ends, 6, BeamOptions(width=4, n=3, with_tree=True))
    assert found.recorder is not None
    tree = found.recorder.tree(found.best)
    assert tree.is_whole
    texts: list[list[int]] = []
    for parent, token_id in zip(tree.parents, tree.token_ids, strict=True):
        texts.append([*(texts[parent] if parent >= 0 else []), token_id])
    assert len({tuple(text) for text in texts}) == len(texts)
    for text, logprob, total in zip(texts, tree.logprobs, tree.totals, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(text)[:, None]).ravel()
        assert logprob == pytest.approx(float(logprobs[-1]), abs=1e-4)
        assert total == pytest.approx(float(logprobs.sum()), abs=1e-4)
    expected = reference(model, prompt, ends, 6, num_beams=4, length_penalty=1.0, early_stopping=False)
    assert [texts[place] for place in tree.best] == [tokens for tokens, _ in expected[:3]]
    scores = {place: score for place, _, score in tree.ends}
    assert np.allclose([scores[place] for place in tree.best], [score for _, score in expected[:3]], atol=1e-4)
    assert search(model, prompt, ends, 6, BeamOptions(width=4, n=3)).recorder is None


def test_a_tree_has_a_bound_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "MOST_TREE_TOKENS", 10)
    found = search(small_llama(3), [4, 9, 2], [], 8, BeamOptions(width=4, n=4, with_tree=True))
    assert found.recorder is not None
    tree = found.recorder.tree(found.best)
    assert len(tree.token_ids) == 10
    assert not tree.is_whole
    assert tree.best == [-1] * 4
    assert all(parent < place for place, parent in enumerate(tree.parents))


def check_against_transformers(rng: np.random.Generator, max_tokens: int, num_ends: int, **options: Any) -> None:
    """One random search, of at most so many tokens and end tokens."""
    model, prompt = small_llama(int(rng.integers(8))), rng.integers(1, VOCABULARY, 3).tolist()
    width = int(rng.integers(2, 5))
    ends = rng.permutation(np.arange(1, VOCABULARY))[:num_ends].tolist()
    found = search(model, prompt, ends, max_tokens, BeamOptions(width=width, n=width, **options))
    expected = reference(model, prompt, ends, max_tokens, num_beams=width, **options)
    tokens = [[link.token_id for link in each.last.chain()] for each in found.best]
    assert tokens == [tokens for tokens, _ in expected], (prompt, ends, width, max_tokens, options)
    np.testing.assert_allclose([each.score for each in found.best], [score for _, score in expected], 1e-5, 1e-4)


@pytest.mark.parametrize("part", range(4))
def test_hundreds_of_random_searches_find_what_transformers_finds(part: int) -> None:
    """Most with more end tokens than beams."""
    rng = np.random.default_rng(part)
    for _ in range(75):
        penalty = float(rng.choice([-2.0, -0.5, 0.0, 0.7, 1.0, 3.0]))
        early = [False, True, "never", "never"][rng.integers(4)]
        limits = int(rng.integers(2, 9)), int(rng.integers(0, 9))
        check_against_transformers(rng, *limits, length_penalty=penalty, early_stopping=early)


@pytest.mark.parametrize("part", range(2))
def test_random_searches_that_never_stop_early_where_longer_is_worse(part: int) -> None:
    """Longer ones: in 1 of 30, what is found depends on the length at which beams are compared."""
    rng = np.random.default_rng(part)
    for _ in range(75):
        penalty = float(rng.choice([-0.5, -0.25, 0.0]))
        limits = int(rng.integers(10, 25)), int(rng.integers(1, 9))
        check_against_transformers(rng, *limits, length_penalty=penalty, early_stopping="never")


def candidates(*pairs: tuple[int, float]) -> Candidates:
    return Candidates(np.array([token for token, _ in pairs], np.int32), np.array([value for _, value in pairs], "f4"))


def test_only_the_first_candidates_may_end() -> None:
    """An end token after `width` better candidates is no hypothesis, as in `transformers`."""
    search = BeamSearch(BeamOptions(width=2, n=2), frozenset({0}), 9)
    search.advance([candidates((5, -0.1), (6, -0.2), (0, -0.3))])
    assert [beam.last.token_id for beam in search.beams] == [5, 6]
    assert not search.best


def test_an_end_token_beyond_the_width_is_no_hypothesis_although_more_is_looked_at() -> None:
    search = BeamSearch(BeamOptions(width=2, n=2), frozenset({0, 1}), 9)
    search.advance([candidates((0, -0.1), (5, -0.2), (1, -0.3), (6, -0.4))])
    assert [beam.last.token_id for beam in search.beams] == [5, 6]
    assert [each.last.token_id for each in search.best] == [0]


@pytest.mark.parametrize(("penalty", "over"), [(-1.0, False), (1.0, False), (-3.0, False)])
def test_never_compares_at_this_length_where_longer_is_worse(penalty: float, over: bool) -> None:
    """As in `transformers`: with a penalty of at most 0 the best that a beam can reach is what it has."""
    options = BeamOptions(width=2, n=2, length_penalty=penalty, early_stopping="never")
    search = BeamSearch(options, frozenset({0}), 40)
    search.advance([candidates((5, -0.1), (6, -9.0), (7, -9.5))])
    for _ in range(2):
        search.advance([candidates((5, -0.1), (0, -3.0), (6, -8.0)), candidates((5, -9.0), (6, -9.1), (7, -9.2))])
    assert len(search.best) == 2
    assert search.done == over


def test_hypotheses_share_their_beginnings() -> None:
    search = BeamSearch(BeamOptions(width=2, n=2), frozenset({0}), 2)
    search.advance([candidates((5, -0.1), (6, -5.0), (0, -9.0))])
    search.advance([candidates((7, -0.1), (8, -0.2), (9, -0.3)), candidates((7, -0.1), (8, -0.2), (9, -0.3))])
    first, second = search.best
    assert search.done
    assert first.last.before is second.last.before
    assert [link.token_id for link in second.last.chain()] == [5, 8]
