"""Figures of an exported model on held-out prompts: share right, share stopped, loss per token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from scripts.demo_model import chat, held_out
from scripts.demo_model.example import Example
from scripts.demo_model.network import EMBEDDING, Params, Shape, hidden_states, token_losses
from scripts.demo_model.packing import Weigher, pack

_LIMITS = {"stories": 320, "completions": 320}
"""New tokens at most; other kinds get `_LIMIT`, three times what their answers take."""
_LIMIT = 128
_ROWS = 20


@dataclass(frozen=True)
class Answer:
    """What the model wrote to one held-out prompt."""

    item: Example
    text: str
    stopped: bool
    right: bool


@dataclass(frozen=True)
class Figures:
    """The model's figures."""

    answers: list[Answer]
    loss: float
    """Nats per token which the model has to write, over other held-out documents."""
    loss_tokens: int

    @property
    def right(self) -> float:
        """The share of right answers."""
        return sum(answer.right for answer in self.answers) / len(self.answers)

    @property
    def stopped(self) -> float:
        """The share of answers which ended with an end token within the limit."""
        return sum(answer.stopped for answer in self.answers) / len(self.answers)

    def by_kind(self) -> dict[str, tuple[int, int, int]]:
        """For each kind: prompts, right answers, answers that stopped."""
        kinds: dict[str, list[Answer]] = defaultdict(list)
        for answer in self.answers:
            kinds[answer.item.kind].append(answer)
        return {
            kind: (len(members), sum(one.right for one in members), sum(one.stopped for one in members))
            for kind, members in kinds.items()
        }


def prompt_text(item: Example) -> str:
    """The text whose tokens the model continues."""
    return chat.render(item.messages, item.tools, add_generation_prompt=True) if item.chat else item.prompt


@partial(jax.jit, static_argnames=("shape", "ends"))
def _complete(
    params: Params, shape: Shape, tokens: jax.Array, lengths: jax.Array, limit: jax.Array, ends: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """Greedy tokens (rows, length) after each row's prompt, and the rows' lengths.

    A cache would be faster, but this must stay simple enough to be believed.
    """
    rows = jnp.arange(tokens.shape[0])
    documents = jnp.zeros_like(tokens)

    def stopped(tokens: jax.Array, now: jax.Array) -> jax.Array:
        last = tokens[rows, now - 1]
        return (now > lengths) & jnp.isin(last, jnp.array(ends))

    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        tokens, now = state
        return jnp.any(~stopped(tokens, now) & (now - lengths < limit))

    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tokens, now = state
        last = hidden_states(params, shape, tokens, documents)[rows, now - 1]
        going = ~stopped(tokens, now) & (now - lengths < limit)
        chosen = jnp.where(going, jnp.argmax(last @ params[EMBEDDING].T, axis=-1), tokens[rows, now % tokens.shape[1]])
        return tokens.at[rows, now % tokens.shape[1]].set(chosen.astype(tokens.dtype)), now + going

    return jax.lax.while_loop(unfinished, step, (tokens, lengths))


def complete(
    params: Params, shape: Shape, tokenizer: Tokenizer, prompts: Sequence[str], limit: int
) -> list[tuple[str, bool]]:
    """Greedy completions, special tokens left out, each with whether it stopped at an end token."""
    ids = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
    length = -(-(max(map(len, ids)) + limit + 1) // 64) * 64
    tokens = np.zeros((len(ids), length), np.int32)
    for row, prompt in enumerate(ids):
        tokens[row, : len(prompt)] = prompt
    ends = tuple(tokenizer.token_to_id(token) for token in (chat.END, chat.SEPARATOR))
    starts = np.array([len(prompt) for prompt in ids], np.int32)
    written, lengths = jax.device_get(_complete(params, shape, tokens, starts, np.int32(limit), ends))
    answers = []
    for row in range(len(ids)):
        answer = written[row, starts[row] : lengths[row]].tolist()
        answers.append((tokenizer.decode(answer, skip_special_tokens=True), answer[-1] in ends))
    return answers


def answer_all(
    params: Params, shape: Shape, tokenizer: Tokenizer, items: list[Example], report: Callable[[int], None]
) -> list[Answer]:
    """Answers to all items; `report` learns how many more are done."""
    answers: list[Answer] = []
    for limit in sorted({_LIMITS.get(item.kind, _LIMIT) for item in items}):
        group = sorted(
            (item for item in items if _LIMITS.get(item.kind, _LIMIT) == limit), key=lambda item: len(prompt_text(item))
        )
        for start in range(0, len(group), _ROWS):
            part = group[start : start + _ROWS]
            texts = complete(params, shape, tokenizer, [prompt_text(item) for item in part], limit)
            for item, (text, stopped) in zip(part, texts, strict=True):
                answers.append(Answer(item, text, stopped, held_out.is_right(item, text)))
            report(len(part))
    return answers


def held_out_loss(params: Params, shape: Shape, tokenizer: Tokenizer, seed: int, count: int) -> tuple[float, int]:
    """Mean loss in nats of the tokens the model has to write in held-out documents, and how many tokens those are."""
    texts = []
    for item in held_out.prompts(seed, count):
        end = chat.END + "\n" if item.chat else chat.SEPARATOR
        texts.append(prompt_text(item) + item.answer + end)
    ids = [np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32) for text in texts]
    batch = pack(ids, 512, Weigher(tokenizer))
    losses = jax.jit(token_losses, static_argnums=1)
    total, tokens = 0.0, 0
    for row in range(0, len(batch.tokens), 8):
        part = slice(row, row + 8)
        chosen = batch.weights[part, 1:] == 1.0
        total += float((np.asarray(losses(params, shape, batch.tokens[part], batch.documents[part])) * chosen).sum())
        tokens += int(chosen.sum())
    return total / tokens, tokens


def evaluate(
    params: Params, shape: Shape, tokenizer: Tokenizer, seed: int, count: int, report: Callable[[int], None]
) -> Figures:
    """All figures: answers to `count` held-out prompts of the seed, and the loss over as many of the next seed."""
    answers = answer_all(params, shape, tokenizer, held_out.prompts(seed, count), report)
    return Figures(answers, *held_out_loss(params, shape, tokenizer, seed + 1, count))
