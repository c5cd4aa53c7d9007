"""Which routes of the server a batch may use."""

from jaxllm.serving.server.routes import OPERATIONS

_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v2/embed",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/classify",
    "/classify",
    "/v1/pooling",
    "/pooling",
)


def batch_urls() -> tuple[str, ...]:
    """Paths that requests of a batch may go to: those that a server has here, too."""
    served = {operation.path for operation in OPERATIONS if "POST" in operation.methods}
    return tuple(path for path in _PATHS if path in served)
