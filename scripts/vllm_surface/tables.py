"""Tables of names: which are present, and why the others are not."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["present", "accepted", "neutral", "absent"]
MEANINGS: Mapping[State, str] = {
    "present": "works as there",
    "accepted": "accepted, and changes nothing or is said in another way",
    "neutral": "accepted with values that ask for nothing; others are refused, with the reason",
    "absent": "not there",
}


@dataclass(frozen=True)
class Row:
    """A name of vLLM's."""

    name: str
    state: State
    reason: str = ""


@dataclass(frozen=True)
class Table:
    """Names of one kind."""

    title: str
    rows: tuple[Row, ...]

    @property
    def counts(self) -> Counter[str]:
        """Rows by state."""
        return Counter(row.state for row in self.rows)

    def markdown(self) -> str:
        """The rows that are not simply present, by state and reason."""
        lines = [f"## {self.title}", ""]
        grouped: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.state != "present":
                grouped.setdefault((row.state, row.reason), []).append(f"`{row.name}`")
        for state in MEANINGS:
            found = [(reason, names) for (each, reason), names in grouped.items() if each == state]
            if found:
                lines += [f"{state.capitalize()}: {MEANINGS[state]}.", ""]
                lines += [f"- {', '.join(names)}{f': {reason}' if reason else ''}" for reason, names in sorted(found)]
                lines.append("")
        return "\n".join(lines)


def summary(tables: Iterable[Table]) -> str:
    """One line for each table: how many names have which state."""
    lines = [f"| | all | {' | '.join(MEANINGS)} |", f"|---|---|{'---|' * len(MEANINGS)}"]
    for table in tables:
        numbers = [str(table.counts[state]) for state in MEANINGS]
        lines.append(f"| {table.title} | {len(table.rows)} | {' | '.join(numbers)} |")
    return "\n".join(lines)


_REASONS = (
    (r"nccl|ray|nsight|elastic_ep|deep_?ep|cudagraph|nvtx|rocm|xpu|gpu_|per_gpu|nixl|mooncake|hf3fs|umbp|moriio|hisparse",
     "of another vendor"),
    (r"flashinfer|marlin|humming|inductor|torch|cutedsl|cohere|sagemaker", "of another vendor, or of other kernels"),
    (r"lora", "adapters (LoRA)"),
    (r"kv_offload|kv_transfer|kv_fetch|kv_conn|ec_transfer|disagg|derender|scale_out|inference/v1|kv_event|KVConn|external",
     "transfer of KV caches between servers, offloading"),
    (r"spec_decode|speculative|draft|diffusion", "speculative decoding, diffusion"),
    (r"mm_|multimodal|image|audio|video|speech|websocket|realtime|Audio|media|assets|vision", "images and sound"),
    (r"elastic|fault|external_elastic|should_keep_api_server", "servers that grow and mend themselves"),
    (r"weight", "weights come from a folder or as arrays, not from a transfer engine: docs/sleep_and_weights.md"),
    (r"collective_rpc|apply_model", "for engines in the process of the caller: LLM has it"),
    (r"encoder_cache", "images and sound"),
    (r"checkpoint_prepare|checkpoint_restore|release_kv_cache_memory", "sleep frees memory: docs/sleep_and_weights.md"),
    (r"sleep_mode_operation|kv_block_|corrupted|cached_by_source|parser_invocations", "not measured"),
    (r"/docs|/readyz", "/openapi.json, /ready"),
    (r"decisions|systemone|generative_scoring", "of vLLM's own interfaces; see /score"),
    (r"watermark", "watermarks"),
    (r"prompt_embed", "prompt embeddings"),
    (r"routed_experts|sampling_mask|trace", "what is returned of experts and traces"),
)  # fmt: skip


def reason_for(name: str) -> str:
    """The feature that is missing, as far as the name tells."""
    return next((reason for pattern, reason in _REASONS if re.search(pattern, name)), "not built")
