"""Requests whose prompt is for another engine, and requests whose prompt another one has computed."""

from typing import TYPE_CHECKING

from jaxllm.engine.features.constrained import Refuse
from jaxllm.engine.features.faults import Faults
from jaxllm.engine.features.feature import StepFeature
from jaxllm.executor.runner import StepResult
from jaxllm.requests.kv_transfer import KVTransferParams, transfer_params
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import Request
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from jaxllm.engine.transfer.exchange import Exchange

_FAILURES = {
    "unreachable": "it does not answer",
    "refused": "it has other pages, or does not let this engine in",
    "timeout": "they took too long",
    "gone": "it does not have them any more",
    "damaged": "they are not what was sent",
    "no_room": "there is no room for them; raise kv_buffer_size",
}


class PromptsForOthers(StepFeature):
    """Keeps the pages of a prompt when its request ends, and tells where they are (`do_remote_decode`)."""

    def __init__(self, faults: Faults, exchange: "Exchange") -> None:
        super().__init__(faults)
        self._exchange = exchange

    def handles(self, request: Request) -> bool:
        """Whether another engine is to go on with the request."""
        params = transfer_params(request.params)
        return params is not None and params.do_remote_decode

    def on_outputs(self, plan: StepPlan, result: StepResult, outputs: list[EngineOutput]) -> None:
        """Keep the pages of requests that end with this step: they are still where they were."""
        del result
        ended = {request.request_id: request for request in plan.requests if request in self.requests}
        for output in outputs:
            request = ended.get(output.request_id)
            if request is not None and output.finish_reason is not None:
                with self.faults.guard(request):
                    output.kv_transfer_params = self._exchange.keep(request)


class PromptsOfOthers(StepFeature):
    """Has requests wait until their pages have come from another engine (`do_remote_prefill`)."""

    hold_reason = "kv_transfer"

    def __init__(self, faults: Faults, exchange: "Exchange", scheduler: Scheduler, refuse: Refuse) -> None:
        super().__init__(faults)
        self._exchange, self._scheduler, self._refuse = exchange, scheduler, refuse
        self._new: dict[Request, KVTransferParams] = {}
        self._params: dict[Request, KVTransferParams] = {}
        self._fetched: dict[Request, int] = {}  # tokens, until that is told

    def handles(self, request: Request) -> bool:
        """Whether the request names pages of another engine. Where nothing is kept, its prompt is computed here."""
        params = transfer_params(request.params)
        return params is not None and params.names_pages

    def on_added(self, request: Request) -> None:
        """Begin to fetch, or wait for what the digests of the request depend on."""
        params = transfer_params(request.params)
        assert params is not None
        self._new[request] = self._params[request] = params
        self._begin_ready()

    def on_step_begin(self) -> None:
        """Begin to fetch what can be looked for now, and release requests whose pages have come."""
        self._exchange.on_step_begin()
        self._begin_ready()
        for each in self._exchange.take_ended():
            request = each.request
            if request not in self.requests:
                continue
            if each.failure is not None and self._exchange.settings.fails:
                why = _FAILURES[each.failure]
                self._refuse(
                    request,
                    f"the prompt's pages did not come from the engine that has them: {why} (kv_load_failure_policy)",
                    None,
                    is_fault=True,
                )
            else:
                self._fetched[request] = each.num_tokens
                self._scheduler.release(request, self.hold_reason)

    def on_scheduled(self, plan: StepPlan) -> None:
        """What was fetched for requests that run now need not stay on the host."""
        for request in plan.admitted:
            if request in self.requests:
                self._exchange.leave(request)

    def on_outputs(self, plan: StepPlan, result: StepResult, outputs: list[EngineOutput]) -> None:
        """Tell with a first output how many tokens have come from another engine."""
        del result
        if not self._fetched:
            return
        fetched = {request.request_id: request for request in plan.requests if request in self._fetched}
        for output in outputs:
            request = fetched.get(output.request_id)
            if request is not None:
                output.num_external_tokens = min(self._fetched.pop(request), request.num_cached_tokens)

    def on_ended(self, request: Request) -> None:
        """Nothing is fetched for a request that has ended, and its pages need not be kept."""
        params = self._params.pop(request, None)
        self._fetched.pop(request, None)
        if params is None:
            return
        if self._new.pop(request, None) is not None:
            self._exchange.give_up(params)
        self._exchange.leave(request)

    def _begin_ready(self) -> None:
        for request, params in list(self._new.items()):
            if request.lora_request is not None and not request.adapter_digest:
                continue  # digests depend on the adapter's content
            del self._new[request]
            is_waiting = False
            with self.faults.guard(request) as guard:
                is_waiting = self._exchange.fetch(request, params)
            if not is_waiting and not guard.failed:
                self._scheduler.release(request, self.hold_reason)
