"""Routes, metrics, and formats of calls and of reasoning."""

import ast
import re

from jaxllm.serving.reply.catalogue import REASONING_FORMATS, TOOL_FORMATS
from jaxllm.serving.server.interfaces import OPERATIONS
from jaxllm.serving.server.pages.views import DOCS
from jaxllm.serving.telemetry.catalogue import METRICS
from scripts.vllm_surface.reasons import reason_for
from scripts.vllm_surface.source import Source
from scripts.vllm_surface.tables import Row, Table

_VERBS = {"get", "post", "put", "delete", "websocket", "api_route", "add_api_route"}


def routes(source: Source) -> Table:
    """Paths of the server."""
    ours = {operation.path for operation in OPERATIONS} | set(DOCS)
    found: dict[str, str] = {}
    for path in source.files("entrypoints"):
        for node in ast.walk(source.tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VERBS:
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and str(first.value).startswith("/"):
                    found.setdefault(str(first.value), str(path))
    rows = [
        Row(name, "present") if name in ours else Row(name, "absent", reason_for(name + place.split("entrypoints")[1]))
        for name, place in sorted(found.items())
    ]
    return Table("routes", tuple(rows))


def metrics(source: Source) -> Table:
    """Names of metrics, without prefix and without the ending that Prometheus' client gives counters."""
    ours = {metric.name.removesuffix("_total") for metric in METRICS}
    found: dict[str, None] = {}
    for path in source.files(""):
        for node in ast.walk(source.tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = re.fullmatch(r"vllm:([a-z_0-9]+)", node.value)
                if name:
                    found[name[1].removesuffix("_total")] = None
    rows = [Row(name, "present") if name in ours else Row(name, "absent", reason_for(name)) for name in sorted(found)]
    return Table("metrics", tuple(rows))


def formats(source: Source) -> Table:
    """Names for --tool-call-parser and --reasoning-parser."""
    rows: list[Row] = []
    for place, ours in (("tool_parsers", TOOL_FORMATS), ("reasoning", REASONING_FORMATS)):
        tree = source.tree(source.folder / "vllm" / place / "__init__.py")
        named = [
            str(key.value) for node in ast.walk(tree) if isinstance(node, ast.Dict)
            for key in node.keys if isinstance(key, ast.Constant)
        ]  # fmt: skip
        rows += [
            Row(full, "present") if name in ours else Row(full, "absent", reason_for(full))
            for name in named
            for full in [f"{place}.{name}"]
        ]
    return Table("formats of calls and reasoning", tuple(rows))
