"""The values of a server's /metrics."""

import time
from dataclasses import dataclass
from typing import Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

IDLE_SECONDS = 120.0
"""After this long, a server that should be idle never will be."""


@dataclass(frozen=True)
class Metrics:
    """Gauges and counters by their names without prefix; samples of one name are added up."""

    values: dict[str, float]

    @classmethod
    def read(cls, url: str) -> Self:
        """Ask the server at `url`."""
        values: dict[str, float] = {}
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text):
            for sample in family.samples:
                name = sample.name.removeprefix("jaxllm:")
                values[name] = values.get(name, 0.0) + sample.value
        return cls(values)

    @classmethod
    def wait_until_idle(cls, url: str) -> Self:
        """Wait until no request runs or waits, and no memory is held; fails after a generous while."""
        deadline = time.monotonic() + IDLE_SECONDS
        while not (metrics := cls.read(url)).idle:
            assert time.monotonic() < deadline, metrics.values
            time.sleep(0.01)
        return metrics

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits, and no KV cache is in use."""
        return not any(self[name] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"))

    def __getitem__(self, name: str) -> float:
        return self.values[name]
