"""Events of the prefix cache on their way out: vLLM's format, and a thread that publishes them over ZeroMQ."""
