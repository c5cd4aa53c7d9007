"""The host's side of sampling: every running request's parameters in arrays, indexed by slot."""

from typing import NamedTuple

import numpy as np

from jaxllm.executor.sampler.row_numbers import NEUTRAL_FLOATS, ROW_NUMBERS
from jaxllm.executor.sampler.rows import BIAS, INT_FIELDS, LOGPROBS, VALID
from jaxllm.executor.sampler.token_bias import MANY, TokenBias
from jaxllm.requests.prompt_embeds import NO_TOKEN
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_limits import MAX_LOGPROB_TOKEN_IDS
from jaxllm.scheduler.table import RequestTable

UPDATE_SIZE = 64
"""Entries in one call of `set_bias`, which has a static shape."""

_NEUTRAL_INTS = np.zeros((len(INT_FIELDS), 1), np.int32)
"""A column of parameters that change nothing."""

_TOP_K, _SEED, _STEP, _SLOT, _BITS = range(len(INT_FIELDS))

_MASK = 2**64 - 1


class DenseRow(NamedTuple):
    """Arguments of `set_row` for a request that uses penalties or a bias, all [V]."""

    output_counts: np.ndarray  # int32
    prompt_seen: np.ndarray  # bool
    bias: np.ndarray  # float32


class BiasUpdate(NamedTuple):
    """Arguments of `set_bias`, all [UPDATE_SIZE]; a slot of -1 is padding."""

    slots: np.ndarray  # int32
    token_ids: np.ndarray  # int32
    values: np.ndarray  # float32


class SamplingTable:
    """Sampling parameters of the requests in the slots, and the rows of a step made from them.

    Order in a step: `set` for requests that were given a slot, then `updates`, then `pack`. Requests that use nothing
    special cost no Python in a step.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._ints = np.repeat(_NEUTRAL_INTS, max_num_seqs, axis=1)
        self._floats = np.repeat(NEUTRAL_FLOATS, max_num_seqs, axis=1)
        self._changing: dict[int, tuple[Request, TokenBias]] = {}
        self.lists_tokens = np.zeros(max_num_seqs, np.bool_)
        """Which slots' requests list tokens whose log-probabilities they want: bool [S]."""
        self.listed_tokens = np.zeros((max_num_seqs, MAX_LOGPROB_TOKEN_IDS), np.int32)
        """These tokens, int32 [S, K]; what is after them means nothing."""

    def must_wait(self, table: RequestTable) -> bool:
        """Whether the next step's parameters depend on tokens that the host does not know yet."""
        return any(
            bias.watches_text and table.num_pending[slot] > 0 and table.requests[slot] is request
            for slot, (request, bias) in self._changing.items()
        )

    def set(self, request: Request) -> DenseRow | None:
        """Take over the parameters of a request that was given `request.slot`, for the first time or once more.

        Returns what the device must know besides them, for `set_row`, or None.
        """
        params, slot = request.params, request.slot
        self._changing.pop(slot, None)
        self._floats[:, slot] = [number.of(params) for number in ROW_NUMBERS]
        self._ints[:, slot] = 0
        self._ints[_SEED, slot] = self._seed_of(request)
        self._ints[_SLOT, slot] = slot
        self._ints[_BITS, slot] = VALID | BIAS * params.uses_bias | LOGPROBS * params.wants_logprobs
        listed = params.logprob_token_ids
        self.lists_tokens[slot] = listed is not None
        if listed is not None:
            self.listed_tokens[slot, : len(listed)] = listed
        if not params.greedy:
            # A limit beyond the vocabulary is none.
            self._ints[_TOP_K, slot] = params.top_k if 0 < params.top_k < self._vocab_size else 0
        return self._dense_row(request) if params.uses_penalties or params.uses_bias else None

    def updates(self, table: RequestTable, slots: np.ndarray, steps: np.ndarray) -> list[BiasUpdate]:
        """Changes of the device's bias that the tokens so far ask for; mostly none.

        `slots` int32 [n] sample in this step, after `steps` int32 [n] output tokens each. The table may lack the last
        of these, which are still on the device, except where `must_wait` forbids it.
        """
        if not self._changing:
            return []
        num_outputs_of = dict(zip(slots.tolist(), steps.tolist(), strict=True))
        entries: list[tuple[int, int, float]] = []
        for slot, (request, bias) in list(self._changing.items()):
            if table.requests[slot] is not request:
                # Finished or preempted; it is set again when it returns.
                del self._changing[slot]
                continue
            num_outputs = num_outputs_of.get(slot)
            if num_outputs is None:
                continue
            output = table.output_tokens(slot)
            entries += ((slot, token, value) for token, value in bias.changes(output, num_outputs))
            if bias.settled(num_outputs):
                del self._changing[slot]
        return [_bias_update(entries[start : start + UPDATE_SIZE]) for start in range(0, len(entries), UPDATE_SIZE)]

    @property
    def any_changes(self) -> bool:
        """Whether the bias of any request is still to change."""
        return bool(self._changing)

    def num_unchanged(self, slot: int, num_output_tokens: int) -> int:
        """How many tokens a slot's request may go on for with the same bias."""
        changing = self._changing.get(slot)
        return MANY if changing is None else changing[1].num_unchanged(num_output_tokens)

    def wants_logprobs(self, slots: np.ndarray) -> np.ndarray:
        """Which of `slots` want log-probabilities: bool [n]."""
        wanted: np.ndarray = (self._ints[_BITS, slots] & LOGPROBS) != 0
        return wanted

    def pack(
        self, slots: np.ndarray, steps: np.ndarray, samples: np.ndarray, num_rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """A step's rows, for `SamplingRows.unpack`: int32 [5, num_rows] and float32 [6, num_rows].

        `slots` int32 [n], n at most `num_rows`; `steps` int32 [n], the number of output tokens each row has so far;
        `samples` bool [n], whether the row's token counts. All other columns are padding.
        """
        ints, floats = np.repeat(_NEUTRAL_INTS, num_rows, axis=1), np.repeat(NEUTRAL_FLOATS, num_rows, axis=1)
        rows = np.flatnonzero(samples)
        chosen = slots[rows]
        ints[:, rows] = self._ints[:, chosen]
        ints[_STEP, rows] = steps[rows]
        floats[:, rows] = self._floats[:, chosen]
        return ints, floats

    def _dense_row(self, request: Request) -> DenseRow:
        output = np.array(request.output_token_ids, np.int32)
        counts = np.bincount(output, minlength=self._vocab_size).astype(np.int32)
        seen = np.zeros(self._vocab_size, np.bool_)
        prompt = request.prompt_token_ids
        seen[prompt if request.prompt_embeds is None else prompt[prompt != NO_TOKEN]] = True
        bias = TokenBias(request)
        row = bias.row(output, self._vocab_size)
        if not bias.settled(len(output)):
            self._changing[request.slot] = request, bias
        return DenseRow(counts, seen, row)

    def _seed_of(self, request: Request) -> int:
        """32 bits from the request's 64; without any, from the engine's seed and the order of arrival.

        The latter survives preemption, and is the same in every run that brings the same requests. Where the order is
        given (`Request.draw_number`), it survives the engine as well.
        """
        own, number = request.params.seed, request.draw_number
        number = request.arrival if number is None else number
        mixed = _mix(own & _MASK) if own is not None else _mix(_mix(self._seed & _MASK) ^ (number & _MASK))
        high = mixed >> 32
        return high - 2**32 if high >= 2**31 else high


def _bias_update(entries: list[tuple[int, int, float]]) -> BiasUpdate:
    update = BiasUpdate(
        np.full(UPDATE_SIZE, -1, np.int32), np.zeros(UPDATE_SIZE, np.int32), np.zeros(UPDATE_SIZE, np.float32)
    )
    for column, values in zip(update, zip(*entries, strict=True), strict=True):
        column[: len(entries)] = values
    return update


def _mix(value: int) -> int:
    """A bijective scrambling of 64 bits (SplitMix64, Steele et al., OOPSLA 2014), so that near seeds differ in all."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
