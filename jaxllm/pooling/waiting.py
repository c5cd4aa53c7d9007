"""Texts of a pooling engine that wait for their adapters."""

from collections.abc import Iterable, Iterator

from jaxllm.adapters.adapters import Adapters, Ready
from jaxllm.adapters.reading import AdaptedStage, read_for
from jaxllm.errors import RequestError
from jaxllm.models.families import registry
from jaxllm.models.pooling_model import abstract_pooling_model, checkpoint_names
from jaxllm.pooling.request import PoolingRequest
from jaxllm.pooling.resolved import ResolvedPoolingConfig
from jaxllm.pooling.runner import PoolingRunner


class AdapterWaiting:
    """Holds the texts whose adapter has no slot yet. Nobody else waits while one is read."""

    def __init__(self, adapters: Adapters[PoolingRequest]) -> None:
        self._adapters = adapters
        self._held: dict[str, PoolingRequest] = {}

    def __len__(self) -> int:
        """Texts that wait here."""
        return len(self._held)

    def ids(self) -> set[str]:
        """Ids of the texts that wait here."""
        return set(self._held)

    def add(self, request: PoolingRequest) -> None:
        """Have the adapter of a text read, if it is not here yet."""
        self._held[request.request_id] = request
        self._adapters.begin(request)

    def remove(self, request_ids: Iterable[str]) -> list[str]:
        """Forget texts; returns the ids of those that waited here."""
        found = [self._held.pop(name) for name in request_ids if name in self._held]
        for request in found:
            self._adapters.forget(request)
        return [request.request_id for request in found]

    def ready(self) -> Iterator[Ready[PoolingRequest]]:
        """Texts that have their adapter now, or cannot have it."""
        for found in self._adapters.ready():
            del self._held[found.request.request_id]
            each = check_labels(found)
            if each.error is not None:
                self._adapters.forget(each.request)
            each.request.adapter_slot = each.slot
            yield each

    def wait(self) -> None:
        """Wait a little for an adapter."""
        self._adapters.wait()

    def ended(self, request: PoolingRequest) -> None:
        """The slot of a text's adapter may go to another, once nobody else uses it."""
        self._adapters.forget(request)


def check_labels(ready: Ready[PoolingRequest]) -> Ready[PoolingRequest]:
    """The same, with an error where the text asks for what the classifier of its adapter does not have."""
    request, adapter = ready.request, ready.adapter
    if adapter is None or adapter.num_labels is None:
        return ready
    labels = request.num_labels = adapter.num_labels
    beyond = [index for index in request.params.returned_token_ids or () if index >= labels]
    if beyond:
        problem, parameter = f"{beyond[0]} is out of range: the adapter has {labels} classes", "returned_token_ids"
    elif request.params.task == "score" and labels > 1:
        problem, parameter = f"the adapter distinguishes {labels} classes; scoring requires one label", "model"
    else:
        return ready
    return Ready(request, error=RequestError(f"{parameter}: {problem}", parameter))


def make_adapters(resolved: ResolvedPoolingConfig, runner: PoolingRunner) -> Adapters[PoolingRequest]:
    """The adapters of an engine that has slots for some."""
    common, outputs = resolved.common, resolved.settings.outputs
    family, options = registry.lookup(common.model.architecture), common.config.lora
    plain, with_slots = (
        abstract_pooling_model(common.model, each, common.dtype, outputs)
        for each in (resolved.forward, resolved.forward_with_slots)
    )
    assert common.adapters is not None
    names = checkpoint_names(family, common.model, outputs)
    stage = AdaptedStage.of_models(plain, with_slots, names, common.adapters)
    return Adapters(
        read_for([stage], options.max_lora_rank, options.lora_target_modules),
        runner.set_adapter,
        num_slots=options.max_loras,
        capacity=options.max_cpu_loras or options.max_loras,
    )
