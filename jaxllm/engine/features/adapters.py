"""What the engine does for requests with LoRA adapters: they wait for theirs, and run with it."""

from jaxllm.adapters.adapters import Adapters
from jaxllm.engine.features.constrained import Refuse
from jaxllm.engine.features.faults import Faults
from jaxllm.engine.features.feature import StepFeature
from jaxllm.errors import RequestError, RequestFaultError
from jaxllm.requests.request import Request
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.scheduler.sharded import ShardedScheduler


class AdapterRequests(StepFeature):
    """Holds the requests whose adapter has no slot yet. Nobody else waits while one is read."""

    hold_reason = "adapter"

    def __init__(
        self, faults: Faults, adapters: Adapters[Request], scheduler: "Scheduler | ShardedScheduler", refuse: Refuse
    ) -> None:
        super().__init__(faults)
        self._adapters, self._scheduler, self._refuse = adapters, scheduler, refuse

    def handles(self, request: Request) -> bool:
        """Whether the request has an adapter."""
        return request.lora_request is not None

    def on_added(self, request: Request) -> None:
        """Have the adapter read, if it is not here yet."""
        self._adapters.begin(request)
        self._release_ready()

    def on_ended(self, request: Request) -> None:
        """The adapter's slot may go to another, once nobody else uses it."""
        if request.lora_request is not None:
            self._adapters.forget(request)

    def on_step_begin(self) -> None:
        """Release requests that have their adapter."""
        self._release_ready()

    def on_idle(self) -> None:
        """Wait a little for an adapter, if nothing else can be done."""
        if self._scheduler.all_requests_held:
            self._adapters.wait()

    def close(self) -> None:
        """Read no more adapters."""
        self._adapters.close()

    def _release_ready(self) -> None:
        for each in self._adapters.ready():
            request = each.request
            with self.faults.guard(request):
                if each.error is not None:
                    parameter = each.error.parameter if isinstance(each.error, RequestError) else None
                    is_fault = isinstance(each.error, RequestFaultError)
                    self._refuse(request, str(each.error), parameter or "lora_request", is_fault=is_fault)
                    continue
                assert each.adapter is not None
                start = each.adapter.start(request.prompt_token_ids)
                # Each sequence of a group has pages that it publishes.
                for sequence in request.sequences:
                    sequence.adapter_slot, sequence.adapter_digest = each.slot, each.adapter.digest
                    sequence.adapter_start, sequence.page_hashes = start, []
                self._scheduler.release(request, self.hold_reason)
