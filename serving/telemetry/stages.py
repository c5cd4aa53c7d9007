"""What the stages of engines hold and how long they work, where engines have stages."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from jaxllm.config.engine_info import StageInfo

LAYERS = "stage_layers", "Layers of a stage of pipeline parallel."
WEIGHTS = "stage_weight_bytes", "Bytes of weights on each device of a stage."
CACHE = "stage_kv_cache_bytes", "Bytes of the KV cache on each device of a stage."
BUSY = "stage_busy_seconds", "Time in which a stage worked; the rest it waited for another stage, or for the host."
"""Name and meaning of each."""


def collect_stages(
    prefix: str, engines: Sequence[tuple[Mapping[str, str], Sequence[StageInfo], Sequence[float]]]
) -> Iterator[Metric]:
    """Of engines with their labels, their stages, and what each of these has worked; nothing where none has stages."""
    if not any(stages for _, stages, _ in engines):
        return
    names = [*engines[0][0], "stage"]
    layers, weights, cache = (
        GaugeMetricFamily(f"{prefix}:{name}", meaning, labels=names) for name, meaning in (LAYERS, WEIGHTS, CACHE)
    )
    busy = CounterMetricFamily(f"{prefix}:{BUSY[0]}", BUSY[1], labels=names)
    for labels, stages, seconds in engines:
        for number, stage in enumerate(stages):
            own = [*labels.values(), str(number)]
            layers.add_metric(own, stage.stop - stage.start)
            weights.add_metric(own, stage.weight_bytes)
            cache.add_metric(own, stage.cache_bytes)
        for number, worked in enumerate(seconds):
            busy.add_metric([*labels.values(), str(number)], worked)
    yield from (layers, weights, cache, busy)
