"""The models that are served."""

from jaxllm.serving.http.body.base import Answer


class Model(Answer, kw_only=True):
    """A name by which requests may call the model."""

    id: str
    object: str = "model"
    created: int
    """When the server started, in seconds since 1970."""
    owned_by: str = "jaxllm"
    root: str
    """The model that the name stands for: a folder or a Hugging Face Hub ID."""
    parent: str | None = None
    max_model_len: int
    """Most tokens of a prompt and its completion together."""


class ModelList(Answer, kw_only=True):
    """All names."""

    object: str = "list"
    data: list[Model]
