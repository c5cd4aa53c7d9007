"""`EngineArgs` and its parser, used as vLLM's programs use them."""

import dataclasses
from typing import Any

import pytest

from jaxllm import AsyncEngineArgs, ConfigError, EngineArgs, EngineConfig
from jaxllm.serving.llm.arguments import FlexibleArgumentParser


def parse(*arguments: str, **defaults: Any) -> Any:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description="a program"))
    parser.set_defaults(**defaults)
    parser.add_argument("--my-own", type=int, default=3)
    return parser.parse_args(list(arguments))


def test_arguments_are_a_dataclass_of_all_options() -> None:
    args = EngineArgs("demo", max_model_len=512, dtype="half", quantization=None)
    assert EngineArgs(**dataclasses.asdict(args)) == args
    assert dataclasses.replace(args, model="other").model == "other"
    assert args.create_engine_config() == EngineConfig.from_options({"max_model_len": 512, "dtype": "float16"})
    assert EngineArgs().create_engine_config() == EngineConfig()
    with pytest.raises(TypeError, match="max_model_length"):
        EngineArgs(max_model_length=5)
    with pytest.raises(ConfigError, match="max_num_seqs=0"):
        EngineArgs(max_num_seqs=0).create_engine_config()
    assert AsyncEngineArgs(model="demo", enable_log_requests=True).create_engine_config() == EngineConfig()


def test_vllms_options_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    assert EngineArgs(trust_remote_code=True).create_engine_config() == EngineConfig()
    assert "trust_remote_code has no effect" in caplog.text
    with pytest.raises(ConfigError, match=r"enable_return_routed_experts=True: not supported"):
        EngineArgs(enable_return_routed_experts=True).create_engine_config()


def test_a_parser_for_all_options_and_others() -> None:
    args = parse("--max_num_seqs", "4", "--my_own=5", "--no-enable-prefix-caching", model="other", enforce_eager=True)
    assert (args.model, args.max_num_seqs, args.my_own, args.tokenizer) == ("other", 4, 5, None)
    found = EngineArgs.from_cli_args(args)
    assert found == EngineArgs("other", max_num_seqs=4, enable_prefix_caching=False, enforce_eager=True)
    values = vars(args)
    del values["my_own"]
    assert EngineArgs(**values) == found, "vLLM's programs give all of it to LLM"
    assert parse("--skip-tokenizer-init").skip_tokenizer_init is True


def test_an_unknown_flag_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--max-model-length", "5")
    assert "--max-model-length" in capsys.readouterr().err


def test_objects_piece_by_piece() -> None:
    assert parse("--hf-overrides.rope_scaling.factor", "2.5").hf_overrides == {"rope_scaling": {"factor": 2.5}}
    pieces = ["--hf_overrides.c_d.e", "1", "--hf-overrides.f+", "one", "--hf-overrides.f+=two,x_y", "--hf_overrides.on"]
    found = {"c_d": {"e": 1}, "f": ["one", "two", "x_y"], "on": True}
    assert parse(*pieces).hf_overrides == found
    assert parse(*pieces, "--my_own", "4").hf_overrides == found, "a flag is no value"
    assert parse("--model", "./a.b").model == "./a.b"
