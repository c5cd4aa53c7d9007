"""What is wrong with an adapter."""

from jaxllm.models.errors import ModelError


class AdapterError(ModelError):
    """An adapter cannot be used with a model. The message names the file, and the field or the tensor."""
