"""The result of `LLM.get_metrics`."""

from jaxllm.serving.llm.offline_metrics import Counter, Gauge, Histogram, Metric, Vector

__all__ = ["Counter", "Gauge", "Histogram", "Metric", "Vector"]
