"""Flags, fields of `EngineArgs`, and environment variables."""

import ast
import re

from jaxllm.compat.vllm.options import OF_SCRIPTS, TRANSLATED, drop_noop_options
from jaxllm.compat.vllm.options.environment import HARMLESS, VARIABLES
from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, engine_flags
from jaxllm.serving.cli import serve
from jaxllm.serving.options.server import noop_flags, server_flags
from scripts.vllm_surface.reasons import reason_for
from scripts.vllm_surface.source import Field, Source
from scripts.vllm_surface.tables import Row, Table
from scripts.vllm_surface.their_flags import TheirFlag, their_flags


def flags(source: Source) -> Table:
    """Flags of `vllm serve`."""
    parser = FlagParser(prog="jaxllm serve")
    serve.add_arguments(parser)
    known = {text for action in parser._actions for text in action.option_strings}  # noqa: SLF001 - nothing else tells
    own = {name.removeprefix("--") for flag in (*engine_flags(), *server_flags()) for name in flag.names} | {"config"}
    return Table("flags", tuple(_flag(flag, known, own) for flag in their_flags(source).values()))


def _flag(flag: TheirFlag, known: set[str], own: set[str]) -> Row:
    missing = [f"-{short}" for short in flag.shorts if f"-{short}" not in known]
    foreign = noop_flags().get(flag.name)
    if f"--{flag.name}" not in known or missing:
        return Row(flag.name, "absent", f"without {', '.join(missing)}" if missing else "unknown")
    if flag.name in own:
        return Row(flag.name, "present")
    if flag.name in TRANSLATED:
        return Row(flag.name, "accepted", TRANSLATED[flag.name].about)
    assert foreign is not None
    return Row(flag.name, "accepted" if foreign.neutral is None else "neutral", foreign.reason)


def fields(source: Source) -> Table:
    """Fields of `AsyncEngineArgs`, as keywords of `LLM` with their default."""
    classes = {each.name: each for each in source.classes("engine/arg_utils.py")}
    own = {flag.name for flag in engine_flags()} | {"skip_tokenizer_init"}
    every = source.fields("AsyncEngineArgs", classes).values()
    return Table("keywords of LLM", tuple(_field(source, each, own) for each in every if not each.name.startswith("_")))


def _field(source: Source, item: Field, own: set[str]) -> Row:
    if item.name in own:
        return Row(item.name, "present")
    known = OF_SCRIPTS.get(item.name.replace("_", "-"))
    try:
        value = default_of(source, item.default)
        EngineConfig.from_options(drop_noop_options({item.name: value}, OF_SCRIPTS, lambda _: None), lambda _: None)
    except ConfigError as error:
        return Row(item.name, "absent", str(error))
    if known is None:
        return Row(item.name, "accepted", TRANSLATED[item.name.replace("_", "-")].about)
    return Row(item.name, "accepted" if known.neutral is None else "neutral", known.reason)


def default_of(source: Source, text: str) -> object:
    """The default that an expression stands for, as far as it can be read; else None."""
    for _ in range(5):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            made = re.search(r"default_factory=(dict|list|set)\b", text)
            named = re.fullmatch(r"(?:get_field\()?(\w+)(?:\.|, ')(\w+)(?:'\))?", text)
            if made:
                return {"dict": {}, "list": [], "set": []}[made[1]]
            if named and named[2] in (known := source.fields(named[1], source.configs)):
                text = known[named[2]].default
            elif found := re.match(r"Field\(default=([^,)]+)", text):
                text = found[1]
            else:
                return {} if "Config" in text else None
    return None


def environment(source: Source) -> Table:
    """Environment variables."""
    names = re.findall(r'^    "(VLLM_\w+)":', (source.folder / "vllm" / "envs.py").read_text(), re.MULTILINE)
    return Table("environment variables", tuple(map(_variable, names)))


def _variable(name: str) -> Row:
    if name in VARIABLES:
        return Row(name, "present")
    if name in HARMLESS:
        return Row(name, "accepted", "has no equivalent, and none is needed")
    return Row(name, "absent", reason_for(name))
