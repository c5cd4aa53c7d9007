"""What `LLM.get_metrics` returns."""

from jaxllm.serving.llm.offline_metrics import Counter, Gauge, Histogram, Metric, Vector

__all__ = ["Counter", "Gauge", "Histogram", "Metric", "Vector"]
