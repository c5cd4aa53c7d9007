"""The script counts the names of a tiny distribution."""

from pathlib import Path

import pytest

from scripts.vllm_surface import options, server
from scripts.vllm_surface.__main__ import main
from scripts.vllm_surface.source import Source
from scripts.vllm_surface.tables import Table, summary
from scripts.vllm_surface.their_flags import their_flags

FILES = {
    "engine/arg_utils.py": """
class EngineArgs:
    max_model_len: int | None = ModelConfig.max_model_len
    enable_lora: bool = False
    swap_space: float = 4
    new_thing: str = ModelConfig.new_thing

    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group.add_argument("--max-model-len", **model_kwargs["max_model_len"])
        group.add_argument("--allowed-media-domains", "-q", **model_kwargs["domains"])
        group.add_argument("--compilation-config", "-zz", **model_kwargs["compilation_config"])
        group.add_argument("--enable-lora", action=argparse.BooleanOptionalAction)
        group.add_argument("--attention-config", "-ac", **model_kwargs["attention_config"])
        group.add_argument("--new-thing", **model_kwargs["new_thing"])

class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False
""",
    "config/model.py": """
class ModelConfig:
    max_model_len: int = Field(default=None, ge=-1)
    domains: list[str] | None = None
    compilation_config: CompilationConfig = Field(default_factory=CompilationConfig)
    attention_config: AttentionConfig = Field(default_factory=AttentionConfig)
    new_thing: str = "x"
""",
    "entrypoints/common/cli_args.py": """
class BaseFrontendArgs:
    chat_template: str | None = None

class FrontendArgs(BaseFrontendArgs):
    uvicorn_log_level: str = "info"
""",
    "entrypoints/router.py": """
@router.post("/v1/chat/completions")
def a(): ...

@router.get("/sleep")
def b(): ...
""",
    "envs.py": """
variables = {
    "VLLM_API_KEY": 1,
    "VLLM_ROCM_THING": 2,
}
""",
    "metrics.py": """
Gauge(name="vllm:num_requests_running")
Counter("vllm:mooncake_total")
""",
}


@pytest.fixture
def source(tmp_path: Path) -> Source:
    for name, text in FILES.items():
        path = tmp_path / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Source(tmp_path)


def states(table: Table) -> dict[str, str]:
    return {row.name: row.state for row in table.rows}


def test_flags(source: Source) -> None:
    shapes = {name: flag.shape for name, flag in their_flags(source).items()}
    assert shapes["allowed-media-domains"] == "values"
    assert (shapes["enable-lora"], shapes["compilation-config"], shapes["chat-template"]) == ("switch", "json", "value")
    table = options.flags(source)
    assert states(table) == {
        "max-model-len": "present", "allowed-media-domains": "present", "compilation-config": "absent",
        "enable-lora": "present", "attention-config": "accepted", "new-thing": "absent", "chat-template": "present",
        "uvicorn-log-level": "accepted",
    }  # fmt: skip
    assert next(row.reason for row in table.rows if row.name == "compilation-config") == "without -zz"
    assert "| flags | 8 | 4 | 2 | 0 | 2 | 0 |" in summary([table])
    assert "- `compilation-config`: without -zz" in table.markdown()


def test_keywords_variables_routes_and_metrics(source: Source) -> None:
    assert states(options.fields(source)) == {
        "max_model_len": "present", "enable_lora": "present", "swap_space": "accepted", "new_thing": "absent",
        "enable_log_requests": "accepted",
    }  # fmt: skip
    assert states(options.environment(source)) == {"VLLM_API_KEY": "present", "VLLM_ROCM_THING": "absent"}
    routes = states(server.routes(source))
    assert routes["/v1/chat/completions"] == "present"
    assert server.metrics(source).rows[0].reason == "of another vendor"
    assert states(server.metrics(source)) == {"mooncake": "absent", "num_requests_running": "present"}


def test_a_folder_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "not a source distribution of vLLM" in capsys.readouterr().err
