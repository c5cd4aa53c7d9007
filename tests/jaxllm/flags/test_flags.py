import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from jaxllm.compat.vllm.options import NOOP_OPTIONS, drop_noop_options
from jaxllm.config import EngineConfig, Section, option, option_fields
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, add_engine_flags, add_section_flags, engine_flags, explicit_options, section_flags


def parse(*arguments: str) -> EngineConfig:
    parser = FlagParser(prog="prog")
    add_engine_flags(parser)
    return EngineConfig.from_options(explicit_options(parser.parse(arguments)))


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parse(*arguments)
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("prog: ")
    assert error.count("\n") == 1
    return error


def test_no_flag_means_the_defaults() -> None:
    assert parse() == EngineConfig()


def test_every_option_has_a_flag_that_sets_it() -> None:
    names = [item.name for _, item in option_fields()]
    assert [flag.name for flag in engine_flags()] == names
    for flag in engine_flags():
        value: object
        if flag.kind is bool:
            value = not flag.default
            arguments = [flag.flag if value else "--no-" + flag.flag.removeprefix("--")]
        else:
            examples = {int: 2, float: 0.25, str: "text", dict: {"a": 1}, tuple: ("text",)}
            value = flag.choices[-1] if flag.choices else examples[flag.kind]
            arguments = [
                flag.flag,
                json.dumps(value) if flag.kind is dict else "text" if flag.kind is tuple else str(value),
            ]
        section = getattr(parse(*arguments), flag.section)
        assert getattr(section, flag.name) == value
        assert type(getattr(section, flag.name)) is flag.kind


def test_only_given_flags_are_options() -> None:
    parser = FlagParser()
    add_engine_flags(parser)
    args = parser.parse(["--max-num-seqs", "64", "--no-enable-prefix-caching"])
    assert explicit_options(args) == {"max_num_seqs": 64, "enable_prefix_caching": False}


@pytest.mark.parametrize(
    ("text", "value"), [("8000", 8000), ("8k", 8000), ("8K", 8192), ("0.5M", 2**19), ("2m", 2_000_000), ("1G", 2**30)]
)
def test_large_numbers(text: str, value: int) -> None:
    assert parse("--max-model-len", text).model.max_model_len == value


def test_underscores_in_names_but_not_in_values() -> None:
    assert parse("--max_model_len=512", "--model=my_folder/a_b").model.max_model_len == 512
    assert parse("--model=my_folder/a_b").model.model == "my_folder/a_b"


def test_unknown_flag_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown flag --max-modle-len; did you mean '--max-model-len'" in error_of(capsys, "--max-modle-len", "8")


def test_no_abbreviations(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown flag --max-model;" in error_of(capsys, "--max-model=8")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--block-size", "x"], "--block-size: 'x' is not an integer"),
        (["--block-size", "1e400k"], "is not an integer"),
        (["--block-size"], "expected one argument"),
        (["--gpu-memory-utilization", "half"], "--gpu-memory-utilization: invalid float value: 'half'"),
        (["--dtype", "int7"], "choose from"),
        (["stray"], "unexpected argument 'stray'"),
    ],
)
def test_wrong_values_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    assert expected in error_of(capsys, *arguments)


@pytest.mark.parametrize("arguments", [["--block-size", "0"], ["--gpu-memory-utilization", "nan"], ["--seed", "-1"]])
def test_bounds_are_those_of_the_option(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match=arguments[0].removeprefix("--").replace("-", "_")):
        parse(*arguments)


def test_help_shows_defaults_bounds_choices_and_sections() -> None:
    parser = FlagParser()
    add_engine_flags(parser)
    text = re.sub(r"\s+", " ", parser.format_help())
    assert "Maximum number of compiled grammars in the cache. (default: 256; at least 1)" in text
    assert "Default: 64 on TPU, else 16. (1 to 256)" in text
    assert "{auto,float32,bfloat16,float16}" in text
    assert "scheduler options: Limits and order of the requests that run in a step." in text
    assert "(default: on)" in text
    assert "trust-remote-code" not in text


@pytest.mark.parametrize("name", NOOP_OPTIONS)
def test_meaningless_flags_say_so_and_go_on(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    known = NOOP_OPTIONS[name]
    if known.neutral is None:
        value = [] if not known.takes_value else ["4", "5"] if known.several else ["4"]
        assert parse(f"--{name}", *value, "--max-num-seqs", "3").scheduler.max_num_seqs == 3
        assert capsys.readouterr().err == f"prog: --{name} has no effect: {known.reason}\n"
        assert drop_noop_options({name.replace("-", "_"): 4, "seed": 1}, NOOP_OPTIONS, lambda _: None) == {"seed": 1}
        return
    assert known.reason in error_of(capsys, f"--{name}", *(["wrong"] if known.takes_value else []))
    for value in known.neutral:
        given = [f"--{name}", json.dumps(value)] if known.takes_value else [f"--no-{name}"]
        assert parse(*given, "--max-num-seqs", "3").scheduler.max_num_seqs == 3
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match=f"^{name.replace('-', '_')}="):
        drop_noop_options({name.replace("-", "_"): "wrong"}, NOOP_OPTIONS, lambda _: None)
    assert drop_noop_options(dict.fromkeys([name.replace("-", "_")]), NOOP_OPTIONS, lambda _: None) == {}


@pytest.mark.parametrize(
    "line",
    [
        "-tp 1", "-pp 1 -dp 1", "--kv-cache-dtype auto", "--generation-config vllm", "--data-parallel-size 1",
        "--pipeline_parallel_size=1", "--cpu-offload-gb 0", "--dtype half", "--dtype float", "--enable-expert-parallel",
        "--no-enable-lora", "--distributed-executor-backend mp", "--hf-overrides {}", "--quantization None",
        "--override-generation-config {}", "--speculative-config {}", "--limit-mm-per-prompt {\"image\":0}",
    ],
)  # fmt: skip
def test_neutral_flags_of_vllm_are_accepted(line: str) -> None:
    parse(*line.split())


def test_no_meaningless_flag_is_an_option() -> None:
    names = {name for flag in engine_flags() for name in flag.names}
    assert not {"--" + name for name in NOOP_OPTIONS} & names
    shorts = [known.short for known in NOOP_OPTIONS.values() if known.short]
    assert len(set(shorts)) == len(shorts)
    assert not {"-" + short for short in shorts} & names


@pytest.mark.parametrize(
    ("line", "option", "value"),
    [
        ("--hf-overrides.theta 1e6 --hf-overrides.a_b.c=x", "hf_overrides", {"theta": 1e6, "a_b": {"c": "x"}}),
        ("--hf_overrides.list+ a,b --hf-overrides.list+=3", "hf_overrides", {"list": ["a", "b", 3]}),
        ('--hf-overrides.a.b 8K --hf-overrides {"a":{"c":1}}', "hf_overrides", {"a": {"b": 8192, "c": 1}}),
        ('--hf-overrides={"a":1} --hf-overrides.a true', "hf_overrides", {"a": True}),
        ("--disable-prefix-caching", "enable_prefix_caching", False),
        ("--enable-hybrid-kv-cache-manager", "disable_hybrid_kv_cache_manager", False),
        ("-O3", "optimization_level", 3),
        ("-O 0", "optimization_level", 0),
        ("-O=2", "optimization_level", 2),
        ("-q int8", "quantization", "int8"),
        ("-q None", "quantization", None),
        ("--max-model-len auto", "max_model_len", None),
        ("--max-model-len -1", "max_model_len", None),
        ("--max-num-seqs None", "max_num_seqs", None),
        ("--max-logprobs -1", "max_logprobs", -1),
        ("--load-format runai_streamer", "load_format", "safetensors"),
        ("-dpb ray", "data_parallel_backend", "ray"),
        ("-ac.backend=cpu", "attention_backend", "cpu"),
        ('--attention-config {"backend":"cpu","flash_attn_version":3}', "attention_backend", "cpu"),
        ("--kernel-config.moe_backend xla", "moe_backend", "xla"),
        ("--kernel-config.linear_backend marlin", "linear_backend", "auto"),
        ("--structured-outputs-config.disable_any_whitespace true", "disable_any_whitespace", True),
        ("--guided-decoding-disable-any-whitespace", "disable_any_whitespace", True),
        ("--profiler-config.torch_profiler_dir here", "profiler_dir", "here"),
        ("--task embed", "convert", "embed"),
        ('--rope-theta 5 --rope-scaling {"x":2}', "hf_overrides", {"rope_theta": 5.0, "rope_scaling": {"x": 2}}),
        ('--rope-theta 5 --hf-overrides {"a":{"b":1}} --hf-overrides {"a":{"c":2}}', "hf_overrides",
         {"rope_theta": 5.0, "a": {"b": 1, "c": 2}}),
        ("--rope-theta 5 --hf-overrides.x 1", "hf_overrides", {"rope_theta": 5.0, "x": 1}),
        ("--device-memory-utilization 0.5", "gpu_memory_utilization", 0.5),
    ],
)  # fmt: skip
def test_forms_that_vllm_allows(line: str, option: str, value: object) -> None:
    config = parse(*line.split())
    section = next(section for section, item in option_fields() if item.name == option)
    assert getattr(getattr(config, section), option) == value


@pytest.mark.parametrize("line", ["-cc.level 3 --compilation-config.use_inductor false", "-cc {} -sc {}", "-dpm"])
def test_short_and_dotted_flags_without_effect(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(*line.split(), "--max-num-seqs", "3").scheduler.max_num_seqs == 3
    assert "has no effect" in capsys.readouterr().err


def test_dots_in_values_and_in_unknown_flags_stay(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("--model", "a.b/c.d").model.model == "a.b/c.d"
    assert "unknown flag --max-modle.len; did you mean '--max-model-len'" in error_of(capsys, "--max-modle.len", "8")
    assert "--rope-theta: " in error_of(capsys, "--rope-theta", "x")
    assert "expected a JSON object" in error_of(capsys, "--attention-config", "[]")
    assert "'embed'" in error_of(capsys, "--task", "embde")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('--structured-outputs-config {"enable_in_reasoning":true}', "grammars always begin after the reasoning"),
        ('--structured-outputs-config {"bakend":"auto"}', "unknown key 'bakend'; did you mean 'backend'"),
        ("--kv-cache-dtype-skip-layers 0 1", "--kv-cache-dtype applies to all layers"),
        ("--tokenizer-mode mistral", "the fast tokenizer of the model's folder"),
        ('--additional-config {"a":1}', "no platform has options of its own"),
    ],
)
def test_what_would_change_results_is_refused(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error_of(capsys, *line.split())
    parse(*["--structured-outputs-config", '{"backend":"auto","enable_in_reasoning":false}'])


def test_kernels_of_other_engines_are_hints() -> None:
    said: list[str] = []
    options = {"attention_backend": "FLASH_ATTN", "moe_backend": "triton-unfused", "seed": None, "max_model_len": -1}
    assert EngineConfig.from_options(options, said.append) == EngineConfig()
    assert [line.partition(" has no effect")[0] for line in said] == [
        "attention_backend='FLASH_ATTN'", "moe_backend='triton-unfused'",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="choose one of 'auto'"):
        EngineConfig.from_options({"attention_backend": "fast"})


def test_options_said_in_another_way_are_keywords_too() -> None:
    given = {"rope_theta": 1e6, "hf_overrides": {"a": 1, "rope_theta": 2}, "task": "embed", "attention_config": None}
    assert drop_noop_options(given, NOOP_OPTIONS, pytest.fail) == {
        "hf_overrides": {"rope_theta": 2, "a": 1}, "runner": "pooling", "convert": "embed",
    }  # fmt: skip
    given = {"rope_theta": 1e6, "hf_overrides": None}
    assert drop_noop_options(given, NOOP_OPTIONS, pytest.fail) == {"hf_overrides": {"rope_theta": 1e6}}


def test_values_have_other_names() -> None:
    assert parse("--dtype", "half").model.dtype == "float16"
    assert EngineConfig.from_options({"dtype": "float"}).model.dtype == "float32"
    assert parse("-tp", "2").parallel.tensor_parallel_size == 2
    assert parse("-tp", "auto").parallel.tensor_parallel_size == "auto"


@dataclass(frozen=True, kw_only=True)
class Texts(Section):
    """A section with the kinds of options that the engine has none of."""

    names: tuple[str, ...] = option(("x",), "Names.", aliases=("labels",))
    extra: Mapping[str, Any] | None = option(None, "More.")


def parse_texts(*arguments: str) -> Texts:
    parser = FlagParser(prog="prog")
    add_section_flags(parser, "texts", Texts)
    return Texts(**explicit_options(parser.parse(arguments), section_flags("texts", Texts)))


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ("x",)),
        (["--names", "a", "b"], ("a", "b")),
        (["--names", "a", "--labels", "b", "c"], ("a", "b", "c")),
        (["--names=a b"], ("a b",)),
        (["--names", '["a", "b"]', "c"], ("a", "b", "c")),
        (["--names", "[a]"], ("[a]",)),
    ],
)
def test_several_texts(arguments: list[str], names: tuple[str, ...]) -> None:
    assert parse_texts(*arguments).names == names


def test_objects_are_json() -> None:
    assert parse_texts("--extra", '{"thinking": false}').extra == {"thinking": False}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--names", "[1, 2]"], "--names: [1, 2] is not a list of strings"),
        (["--names"], "expected at least one argument"),
        (["--extra", "[]"], "--extra: '[]' is not a JSON object"),
    ],
)
def test_wrong_texts_and_objects(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse_texts(*arguments)
    assert exit_info.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [{"names": "a"}, {"names": ["a"]}, {"names": (1,)}, {"extra": []}, {"extra": {1: 2}}]
)
def test_wrong_containers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"expected a list of strings|expected a mapping"):
        Texts(**options)
