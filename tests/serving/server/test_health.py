"""/health reports kernels that failed their self-tests."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from jaxllm.config.engine_info import KernelChoice
from jaxllm.serving.server.routes import health
from tests.serving.conftest import engine_info

KERNELS = ("attention", "linear", "mm_encoder_attn", "moe", "sampling")


async def body(**known: Any) -> Any:
    """The answer of a server whose engine says so of itself; None for an empty one."""
    app = Starlette(routes=[Route("/health", health)])
    llm = SimpleNamespace(
        info=engine_info(**known), check_health=lambda: None, state=lambda: SimpleNamespace(halted=None)
    )
    app.state.server = SimpleNamespace(llm=llm)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        response = await client.get("/health")
    assert response.status_code == 200
    return response.json() if response.content else None


async def test_nothing_where_all_are_right() -> None:
    assert await body(kernels={name: KernelChoice("tpu") for name in KERNELS}) is None


@pytest.mark.parametrize("kernel", KERNELS)
async def test_which_kernel_is_not_right_and_why(kernel: str) -> None:
    kernels = {name: KernelChoice("tpu") for name in KERNELS}
    problem = "tpu: it is off by 1.0e+00"
    backends = {f"{name}_backend": "xla" if name == kernel else "tpu" for name in KERNELS}
    problems = {f"{name}_problem": problem if name == kernel else None for name in KERNELS}
    found = await body(kernels={**kernels, kernel: KernelChoice("xla", problem)})
    assert found == {**backends, **problems}
