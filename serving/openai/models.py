"""The models that requests may name."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.serving.http.identity import model_name
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.openai.protocol.models import Model, ModelList


async def list_models(request: Request) -> Response:
    """List the names of the model."""
    server = server_of(request)
    models = [_model(server, name) for name in server.model_names]
    return json_response(ModelList(data=models + [_model(server, name) for name in server.adapters.names]))


async def retrieve_model(request: Request) -> Response:
    """Describe one name, which may contain slashes."""
    server = server_of(request)
    name = request.path_params["model"]
    if not name:
        # /v1/models/, which is no path of its own.
        raise HTTPException(404)
    return json_response(_model(server, model_name(server, name)))


def _model(server: ServerState, name: str) -> Model:
    info, adapter = server.llm.info, server.adapters.get(name)
    if adapter is not None:
        root, parent = adapter.request.lora_path, adapter.parent
        return Model(id=name, created=server.created, root=root, parent=parent, max_model_len=info.max_model_len)
    return Model(id=name, created=server.created, root=info.model, max_model_len=info.max_model_len)
