"""Secrets among the options are shown to nobody."""

from jaxllm.config import EngineConfig
from jaxllm.serving.server.server_info import _shown


def test_values_of_maps_are_hidden_unless_their_option_says_that_they_are_harmless() -> None:
    secret = {"env_vars": {"AWS_SECRET_ACCESS_KEY": "sekret"}, "pip": ["https://user:sekret@host/simple"]}
    config = EngineConfig.from_options(
        {"model": "demo", "ray_runtime_env": secret, "hf_overrides": {"a": {"b": 1}}, "hf_token": "sekret"}
    )
    shown = _shown(config)
    assert "sekret" not in str(shown)
    assert shown["ray"]["ray_runtime_env"] == {"env_vars": "(not shown)", "pip": "(not shown)"}
    assert shown["model"]["hf_overrides"] == {"a": {"b": 1}}
    assert "hf_token" not in shown["model"]
    assert shown["model"]["model"] == "demo"
