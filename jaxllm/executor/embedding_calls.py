"""The host's side of prompts that are embeddings: what of them a step needs is sent before it."""

import numpy as np

from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.program_table import SET_EMBEDDINGS
from jaxllm.executor.state_programs import embeddings_at_once
from jaxllm.executor.step_packer import StepPacker
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.table import RequestTable


class EmbeddingCalls:
    """Sends embeddings of prompts to the device, a step's before it. Steps that need none send nothing."""

    def __init__(self, calls: DeviceCalls, packer: StepPacker, num_slots: int, most_tokens: int) -> None:
        """`most_tokens` are those of the largest step."""
        self._calls, self._packer = calls, packer
        self._at_once = embeddings_at_once(most_tokens)
        self._has_embeds = np.zeros(num_slots, np.bool_)

    def send(self, plan: StepPlan, table: RequestTable) -> None:
        """Put the embeddings of a plan's tokens where the step looks for them."""
        for request in plan.admitted:
            self._has_embeds[request.slot] = request.prompt_embeds is not None
        needed = self._has_embeds[plan.slots] & (plan.starts < table.num_prompt_tokens[plan.slots])
        if not needed.any():
            return
        # Where the first token of each row is.
        firsts = self._packer.last_hidden(plan) - plan.num_new_tokens + 1
        places, rows = [], []
        for row in np.flatnonzero(needed).tolist():
            embeds, start = plan.requests[row].prompt_embeds, int(plan.starts[row])
            assert embeds is not None
            positions, own = embeds.between(start, start + int(plan.num_new_tokens[row]))
            places.append(positions + (firsts[row] - start))
            rows.append(own)
        self._send(np.concatenate(places), rows)

    def _send(self, places: np.ndarray, rows: list[np.ndarray]) -> None:
        """`places` [n] of all `rows`, [n, D] together, as many at a time as the program takes."""
        together = rows[0] if len(rows) == 1 else np.concatenate(rows)
        for first in range(0, len(places), self._at_once):
            some = places[first : first + self._at_once]
            sent_places = np.full(self._at_once, -1, np.int32)
            sent = np.zeros((self._at_once, together.shape[1]), together.dtype)
            sent_places[: len(some)] = some
            sent[: len(some)] = together[first : first + self._at_once]
            self._calls.call(SET_EMBEDDINGS, sent_places, sent)
