"""Numbers and lists of the pages that the code has too."""

import json
import re
from typing import Any

import pytest

from benchmarks.models import HEAD
from jaxllm.models.families import registry
from jaxllm.processors.host import SLOW_SECONDS
from jaxllm.requests import sampling_limits
from jaxllm.serving.affinity import cached_blocks, guesses
from jaxllm.serving.fleet.settings import LEASE_SECONDS
from jaxllm.serving.http.body import bounds
from jaxllm.serving.ipc import wire
from jaxllm.serving.ipc.client import health
from jaxllm.serving.ipc.remote import messages as remote
from jaxllm.serving.openai.batches.store import MOST_REQUESTS
from jaxllm.serving.openai.completions.routes import MAX_PROMPTS
from jaxllm.serving.options.named_templates import NAMED_TEMPLATES
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.reply.catalogue import REASONING_FORMATS, TOOL_FORMATS
from jaxllm.serving.text.templates import budget
from jaxllm.structured.complexity import check
from jaxllm.structured.grammar_sandbox import client
from tests.conftest import ROOT

UNITS = {"": 1, "s": 1, "bytes/s": 1, "KiB": 1 << 10, "MiB": 1 << 20}


def page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


DEFAULTS = re.findall(r"- `--([\w-]+)` \(default ([\d.,]+) ?(\w*(?:/s)?)\)", page("limits.md"))


@pytest.mark.parametrize(("flag", "number", "unit"), DEFAULTS)
def test_defaults_of_limits(flag: str, number: str, unit: str) -> None:
    options: Any = ServerOptions()
    assert getattr(options, flag.replace("-", "_")) == float(number) * UNITS[unit]


def test_most_limits_have_their_default_on_the_page() -> None:
    assert len(DEFAULTS) > 8


@pytest.mark.parametrize(
    ("row", "most"),
    [
        ("`messages`, items of `input`", bounds.MOST_MESSAGES),
        ("parts of one message's content", bounds.MOST_PARTS),
        ("`tools`, calls in a message", min(bounds.MOST_TOOLS, bounds.MOST_CALLS)),
        ("`documents`, texts of `/score` and `/rerank`", bounds.MOST_DOCUMENTS),
        ("`stop`, `bad_words`", min(sampling_limits.MAX_STOPS, sampling_limits.MAX_BAD_WORDS)),
        ("`stop_token_ids`", sampling_limits.MAX_STOP_TOKEN_IDS),
        ("`logit_bias`", bounds.MOST_BIASES),
        ("`logprob_token_ids`", sampling_limits.MAX_LOGPROB_TOKEN_IDS),
        ("prompts of a completion", MAX_PROMPTS),
    ],
)
def test_the_longest_lists(row: str, most: int) -> None:
    (cell,) = re.findall(rf"\| {re.escape(row)} \| ([\d,]+)", page("limits.md"))
    assert int(cell.replace(",", "")) == most


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("chat_templates.md", f"{['no', 'one', 'two'][int(budget.SECONDS)]} seconds of processor time"),
        ("data_parallel.md", f"a host is silent for {remote.SILENCE_SECONDS:.0f} s"),
        ("data_parallel.md", f"the first {guesses.MOST_BLOCKS * guesses.BLOCK:,} tokens of a prompt"),
        ("data_parallel.md", f"in blocks of {guesses.BLOCK}."),
        ("data_parallel.md", f"it compares {cached_blocks.MOST_TOKENS:,}"),
        ("router.md", f"at most {cached_blocks.MOST_BLOCKS:,} blocks"),
        ("router.md", f"the first {cached_blocks.MOST_TOKENS:,} tokens"),
        ("router.md", f"which is {LEASE_SECONDS} s in a fleet"),
        ("router.md", f"`--min-transfer-tokens` ({ServerOptions().min_transfer_tokens}) of its tokens"),
        ("files.md", f"A batch has at most {MOST_REQUESTS:,} requests."),
        ("logits_processors.md", f"takes more than {1000 * SLOW_SECONDS:.0f} ms"),
        ("logits_processors.md", f"at most {sampling_limits.MAX_EXTRA_BYTES >> 10} KiB of it"),
        ("processes.md", f"at most {wire.CREDIT} messages ahead"),
        ("processes.md", f"Every {health.RECONCILE_SECONDS:.0f} s the client"),
        ("processes.md", f"wait up to {health.RESTART_WAIT_SECONDS:.0f} s for it"),
        ("processes.md", f"At most {remote.WINDOW} messages are in flight"),
        ("requests.md", f"names up to {sampling_limits.MAX_LOGPROB_TOKEN_IDS} tokens"),
        ("structured_outputs.md", f"rules and terminals: {check.MAX_LEVELS:,}"),
        ("structured_outputs.md", f"in terminals that contain others: {check.MAX_OPTIONAL}"),
        ("structured_outputs.md", f"Results are cached ({client.MOST_VERDICTS:,} of them"),
        ("structured_outputs.md", f"one client may have {client.MOST_OF_ONE} waiting"),
        ("structured_outputs.md", f"After {client.PATIENCE_SECONDS:.0f} seconds its client gets"),
        ("tools.md", f"A request has at most {bounds.MOST_TOOLS} tools."),
    ],
)
def test_a_number_of_a_page_is_that_of_the_code(name: str, sentence: str) -> None:
    assert sentence in page(name)


def test_formats_that_are_missing_are_missing() -> None:
    text = page("tools.md")
    (missing,) = re.findall(r"- vLLM's ((?:`\w+`,? ?(?:and )?)+)are not here yet", text)
    names = set(re.findall(r"`(\w+)`", missing))
    assert len(names) > 3
    assert not names & (set(TOOL_FORMATS) | set(REASONING_FORMATS))


def test_formats_that_the_text_names_are_in_the_table() -> None:
    text = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    notes = text.split("\n| `xlam`")[1].split("### Mistakes")[0]
    sentences = [each for each in notes.split("\n- ")[1:] if "are not here yet" not in each]
    named = {name for each in sentences for name in re.findall(r"`([a-z]\w*\d\w*|pythonic|xlam|openai|mistral)`", each)}
    assert len(named) > 10
    assert named <= set(TOOL_FORMATS)


def test_counts_of_the_status_page() -> None:
    text = page("status.md")
    decoders = sum(family.use == "generate" for family in registry.families().values())
    assert f"- {decoders} architectures of decoders" in text
    assert f"{len(NAMED_TEMPLATES)} named [chat templates]" in text


def test_counters_of_a_step_are_those_that_are_accepted() -> None:
    counters = json.loads((ROOT / "benchmarks" / "accepted.json").read_text(encoding="utf-8"))["counters"]
    text = page("benchmarks.md")
    few, many = (int(counters[f"Python calls, {running} running"]) for running in (8, 64))
    assert f"it calls {few} of jaxllm's functions for 8 requests, and {many} for 64" in text
    few, many = (int(counters[f"bytes to the device, {running} running"]) for running in (8, 64))
    assert f"({few:,} bytes for 8 requests, {many:,} for 64)" in text


def test_the_models_page_begins_as_its_benchmark_writes_it() -> None:
    assert (ROOT / "docs" / "models.md").read_text(encoding="utf-8").startswith(HEAD)
