"""`EngineArgs` and a parser of flags, under vLLM's names: both are made from the options of `EngineConfig`."""

import argparse
import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from jaxllm.compat.vllm.options import NOOP_OPTIONS, TRANSLATED, drop_noop_options
from jaxllm.config import EngineConfig
from jaxllm.flags import FlagParser, add_engine_flags, engine_flags

logger = logging.getLogger(__name__)

OF_LLM: Mapping[str, Any] = {"skip_tokenizer_init": False}
"""Arguments that are not options of the engine, but of what brings text to it."""
OF_SERVERS: Mapping[str, Any] = {"enable_log_requests": False}
"""Arguments of `AsyncEngineArgs` that are for servers, and have no effect on an engine."""


class FlexibleArgumentParser(FlagParser):
    """An argument parser for flags with dashes or underscores, and for `--name.key value` in place of JSON."""

    def __init__(self, prog: str | None = None, **settings: Any) -> None:
        """As of `argparse.ArgumentParser`; `add_json_tip`, which vLLM has, changes nothing."""
        settings.pop("add_json_tip", None)
        super().__init__(prog=prog, **settings)

    def check_port(self, value: str) -> int:
        """A TCP port; the `type` of an argument. Raises `argparse.ArgumentTypeError`."""
        if not value.isdecimal() or not 1024 <= int(value) <= 65535:
            raise argparse.ArgumentTypeError(f"{value!r}: must be a port from 1024 to 65535")
        return int(value)


class _EngineArgs:
    """The arguments of an engine, as vLLM's programs hand them around: a dataclass with a field for each option.

    vLLM's options that have no effect are fields as well, and None unless they are given: `LLM(**asdict(args))` treats
    them as `LLM` does.
    """

    @classmethod
    def add_cli_args(cls, parser: FlexibleArgumentParser) -> FlexibleArgumentParser:
        """Add a flag for each option to `parser`, which is returned. All have defaults, unlike those of `jaxllm`."""
        left_out = {name.replace("_", "-") for name in OF_LLM}
        foreign = {name: known for name, known in NOOP_OPTIONS.items() if name not in left_out}
        add_engine_flags(parser, foreign)
        for name, default in OF_LLM.items():
            parser.add_argument("--" + name.replace("_", "-"), action=argparse.BooleanOptionalAction, default=default)
        parser.set_defaults(**{item.name: item.default for item in dataclasses.fields(cls)})  # type: ignore[arg-type]
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """From the result of a parser; what is not an argument of an engine is left alone."""
        known = {item.name for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in vars(args).items() if name in known})

    def create_engine_config(self, *_: Any, **__: Any) -> EngineConfig:
        """The options of the engine. Raises `ConfigError` for what is wrong, or would need what there is not."""
        others = (*OF_LLM, *OF_SERVERS)
        given: dict[str, Any] = dataclasses.asdict(self)  # type: ignore[call-overload]
        options = {name: value for name, value in given.items() if name not in others}
        return EngineConfig.from_options(drop_noop_options(options, NOOP_OPTIONS, logger.warning))


def _fields() -> list[tuple[str, Any, Any]]:
    """The fields of every engine option, the model first, then vLLM's that have no effect or stand for others."""
    flags = {flag.name: flag.default for flag in engine_flags()}
    # Programs give the model without its name.
    own: dict[str, Any] = {"model": flags["model"], **flags, **OF_LLM}
    foreign = dict.fromkeys(name.replace("-", "_") for name in (*NOOP_OPTIONS, *TRANSLATED))
    return [(name, Any, dataclasses.field(default=value)) for name, value in {**own, **foreign, **OF_LLM}.items()]


def _made(name: str, fields: list[tuple[str, Any, Any]], base: type) -> type:
    return dataclasses.make_dataclass(name, fields, bases=(base,), namespace={"__module__": __name__})


if TYPE_CHECKING:

    @dataclasses.dataclass(init=False)
    class EngineArgs(_EngineArgs):
        """See `_EngineArgs`."""

        model: str = "demo"

        def __init__(self, model: str = "demo", **options: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

    class AsyncEngineArgs(EngineArgs):
        """Arguments of an engine for many callers."""

else:
    EngineArgs = _made("EngineArgs", _fields(), _EngineArgs)
    AsyncEngineArgs = _made(
        "AsyncEngineArgs", [(name, Any, default) for name, default in OF_SERVERS.items()], EngineArgs
    )
