"""Stage `greedy`: the same greedy tokens on one device, on all of them, and in float32 on the CPU."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jaxllm.doctor.engine_run import Answers, engine_answers
from jaxllm.doctor.result import Context, Outcome

CACHE, FIRST = "engine-cache", "engine-answers.json"
"""In the scratch folder: executables and answers of the engine on one device, for the stage `executables`."""

KERNEL, WITHOUT_KERNEL = "bfloat16 vs. xla attention", "bfloat16, xla attention"

NEAR = {"float32": 0.02}
OTHER_NEAR = 0.25
"""Two tokens whose log-probabilities differ by less are a tie, which rounding decides."""

LARGEST_ON_CPU = 2e9
"""Parameters of a model that is run on the CPU as well."""


def run(context: Context) -> Outcome:
    """Compare token by token."""
    context.say("engine on one device")
    one = engine_answers(context, {"tensor_parallel_size": 1}, context.scratch / CACHE)
    (context.scratch / FIRST).write_bytes(msgspec.json.encode(one))
    size = max((size for size in one.sizes if size <= one.devices), default=1)
    is_small = one.parameters <= LARGEST_ON_CPU
    wanted = dict(comparison_engines(one, size, is_small=is_small))
    context.say(f"engines: {', '.join(wanted)}")

    def answers(name: str) -> Answers:
        return engine_answers(context, wanted[name].options, context.scratch / name, wanted[name].variables)

    # Other devices than GPUs belong to one process at a time.
    with ThreadPoolExecutor(len(wanted) or 1 if one.platform == "gpu" else 1) as pool:
        others = dict(zip(wanted, pool.map(answers, wanted), strict=True))
    # In 16 bits there is another kernel, and its own like to compare with.
    same = {name: others.pop(name) for name in (KERNEL, WITHOUT_KERNEL) if name in others}
    found = {name: compare(one, answers) for name, answers in others.items()}
    if same:
        found[KERNEL] = compare(same[KERNEL], same[WITHOUT_KERNEL])
    parts = [f"tp 1 on {one.platform} ({one.dtype}, started in {one.start_seconds:.1f} s)"]
    parts += [f"{name}: {each['equal']} of {each['rows']} equal{_ties(each)}" for name, each in found.items()]
    parts += [] if size > 1 else ["no second device"]
    parts += [] if is_small else ["too large for the CPU"]
    figures = {"dtype": one.dtype, "platform": one.platform, "start_seconds": one.start_seconds, "compared": found}
    wrong = [name for name, each in found.items() if each["wrong"]]
    if wrong:
        advice = "if the layers stage passes, sampling or sharding is wrong: send us the report"
        return Outcome("; ".join(parts), figures, "failed", advice)
    return Outcome("; ".join(parts), figures)


@dataclass(frozen=True)
class OtherEngine:
    """The options that another engine is started with."""

    options: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)


def comparison_engines(one: Answers, size: int, *, is_small: bool) -> Iterator[tuple[str, OtherEngine]]:
    """Engines compared with that on one device, by name."""
    if size > 1:
        yield f"tp {size}", OtherEngine({"tensor_parallel_size": size})
    # On a CPU the stage `layers` has compared the kernels with XLA's; here it is for want of anything else.
    if is_small and (one.platform != "cpu" or size == 1):
        options = {"tensor_parallel_size": 1, "dtype": "float32", "attention_backend": "xla"}
        yield "cpu float32", OtherEngine(options, {"JAX_PLATFORMS": "cpu"})
    if one.platform != "cpu" and one.dtype == "float32":
        options = {"tensor_parallel_size": 1, "dtype": "bfloat16"}
        yield KERNEL, OtherEngine(options)
        yield WITHOUT_KERNEL, OtherEngine({**options, "attention_backend": "xla"})


def compare(one: Answers, other: Answers) -> dict[str, Any]:
    """Rows that are equal, that part at a tie, and that part elsewhere (`wrong`)."""
    near = NEAR.get(one.dtype, OTHER_NEAR)
    gaps = [
        gap
        for tokens, alternatives, others in zip(one.tokens, one.alternatives, other.tokens, strict=True)
        if (gap := _gap_where_they_part(tokens, alternatives, others)) is not None
    ]
    ties = sum(gap < near for gap in gaps)
    return {"rows": len(one.tokens), "equal": len(one.tokens) - len(gaps), "ties": ties, "wrong": len(gaps) - ties}


def _gap_where_they_part(tokens: list[int], alternatives: list[dict[int, float]], others: list[int]) -> float | None:
    """How much less likely the other token is where the first difference lies; None where there is none."""
    for token, likeliest, other in zip(tokens, alternatives, others, strict=True):
        if token != other:
            return likeliest[token] - likeliest.get(other, float("-inf"))
    return None


def _ties(found: dict[str, Any]) -> str:
    parts = [f"{found['ties']} differ at a tie"] if found["ties"] else []
    parts += [f"{found['wrong']} WRONG"] if found["wrong"] else []
    return f" ({', '.join(parts)})" if parts else ""
