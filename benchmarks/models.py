"""What published models take on TPUs that are not here: writes docs/models.md.

    scripts/bench models                     plan what has not been planned yet, then write the page
    scripts/bench models --again gemma       plan those with such names again
    scripts/bench models --write             only write the page

`published/` has the sizes that a model's config.json gives. Each model is planned by `jaxllm plan` for as many v6e
chips as hold it: a decode step and the largest step are compiled by the chip's own compiler. No weights are needed.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.config import ModelConfig
from jaxllm.models.pattern import segments_of
from jaxllm.serving.cli.main import main as run_command

FOLDER = Path(__file__).parent / "published"
PLANS = FOLDER / "plans" / "v6e.json"
SEEING_PLANS = FOLDER / "plans" / "v5p.json"
"""Of models that see images, which are planned for this chip as well."""
GPU_PLANS = FOLDER / "plans" / "h100.json"
"""Of the same models on a described GPU, where `scripts/gpu_compile --images` has compiled them."""
PAGE = Path("docs/models.md")
TOPOLOGIES = {1: "1x1", 4: "2x2", 8: "2x4"}
"""Of v6e, by the number of chips."""

FLAGS = {"Qwen2.5-VL-7B-Instruct": ["--max-image-patches", "5476"]}
"""Of plans, by file: images of 1036 pixels each way where they may have any size."""

LONGEST = 32768
"""Requests are planned for this many tokens, or as many as the model takes."""

HEAD = """# Models

`jaxllm models` lists all architectures, and what each is compared with; [decoders that are not
here](absent-models.md) have a page of their own, and `jaxllm models --missing CONFIG` says what one
configuration needs. Embedders, classifiers and rerankers have [their own page](pooling.md#models).
For every family, tests compare with transformers:

- Logits agree within 1e-4 in float32, for prompts in chunks (`tests/models/test_families.py`; whole
  prompts with `JAXLLM_EVERY_FAMILY=1`).
- Greedy tokens through the engine agree, batched, preempted and with prefix hits
  (`tests/e2e/test_families.py`: a set of families that together make every choice; all families
  with `JAXLLM_EVERY_FAMILY=1`).

Quantised checkpoints keep their numbers: [Quantisation](quantization.md) lists the formats.

The first known name in `architectures` of `config.json` selects the family, in any case; old names
such as `LLaMAForCausalLM` are known. If `architectures` is missing, null or empty, `model_type`
decides. A tokenizer needs only its own files, whatever `config.json` says.

`--dtype auto` computes in the checkpoint's type. bfloat16 halves the memory, and what a decode
reads. On TPUs, `auto` uses bfloat16 in place of float16; on CPUs, float32. On CPUs it also uses
float32 for models with recurrent layers, because they then serve several requests faster. These
figures are for random weights of 0.3 B (16 layers, 8 requests in the last column) on two processors
with AVX-512, with other work running:

| model | type | GB | tokens/s of one | of eight |
|---|---|---|---|---|
| Qwen 2 | float32 | 1.69 | 12.4 | 46 |
| | bfloat16 | 1.06 | 20.4 | 83 |
| GPT-2 | float32 | 1.67 | 5.4 | 31 |
| | bfloat16 | 1.07 | 17.1 | 78 |
| Mamba 2 | float32 | 1.35 | 5.8 | 96 |
| | bfloat16 | 1.05 | 10.6 | 26 |

Tables of n-grams (Qwen4-Exp: 20 million rows each) are weights on the devices, which share them by
rows: `jaxllm plan` counts them ([decision 077](decisions/077-n-grams-are-states.md)).

The next table shows what published models need on v6e chips. It comes from their sizes alone: the
chip's own compiler compiles their steps, and nothing is measured. `scripts/bench models` makes it;
models that are missing have not been planned yet.

- Requests have up to 32,768 tokens, or the model's maximum.
- Weights are in GiB, and KV in KiB per token; where layers have windows, it is what the longest
  request needs. States of recurrent layers are not included: their size does not depend on the
  length of a request.
- The layers in brackets are compiled, and the others repeat them, so a deeper model of the family
  compiles as many.
- Compilation is the time of the slowest step, in seconds, on a machine with other work: when Gemma
  3n and Falcon-H1 were compiled, ten times as much as it has processors for.
- A decode is one step of 64 requests with 1,024 tokens each, and a prefill one step of 8,192
  tokens. Their milliseconds are roofline estimates.
- A dash in place of chips means that the model needs more than eight; a dash in place of a prefill
  means that there is no step of that size.

| model | chips | layers | weights | KV | tokens that fit | compiled in | decode | prefill |
|---|---|---|---|---|---|---|---|---|
"""


IMAGES_HEAD = """
## Images

The programs that encode images, by the same compiler: what one needs besides weights, in GiB, and
XLA's own estimate of its time in ms, to which attention is added. That is all layers by the static
model of its kernel (`scripts/bench tpu_segments`, [Kernels](kernels.md)). XLA's estimates of the
same chips' steps are two to four times the roofline's. An image is encoded by the smallest program
that holds it; the largest is in the table.

| model | chip | patches up to | tokens | compiled in | temporaries | by XLA |
|---|---|---|---|---|---|---|
"""


GPU_HEAD = """
The same on a described H100 (`scripts/gpu_compile --images`), with whole models: weights and what a
program needs besides them in GiB, kernels, launches by the host, its waits for the device, and the
roofline of `jaxllm plan` in ms. A prompt has the tokens of an image, up to a power of two.

| model | weights | program | compiled in | temporaries | kernels | launches | waits | roofline |
|---|---|---|---|---|---|---|---|---|
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, and write the page."""
    parser = argparse.ArgumentParser(prog="scripts/bench models", description=__doc__.splitlines()[0])
    parser.add_argument("--again", metavar="NAME", nargs="*", default=[], help="Parts of names to plan again.")
    parser.add_argument("--write", action="store_true", help="Only write the page.")
    args = parser.parse_args(arguments)
    for chip, file in (("v6e", PLANS), ("v5p", SEEING_PLANS)):
        plans: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        for path in [] if args.write else sorted(FOLDER.glob("*.json")):
            name = json.loads(path.read_text())["_name_or_path"]
            again = any(part.lower() in name.lower() for part in args.again)
            if (name not in plans or again) and (chip == "v6e" or sees(path)):
                plans[name] = plan(path, chip)
                print(name, plans[name], flush=True)
                file.parent.mkdir(exist_ok=True)
                file.write_text(json.dumps(plans, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page())
    return 0


def page() -> str:
    """The page, of the plans that are kept."""
    plans = {chip: json.loads(file.read_text()) for chip, file in (("v6e", PLANS), ("v5p", SEEING_PLANS))}
    whole = HEAD + "".join(rows(plans["v6e"])) + IMAGES_HEAD + "".join(image_rows(plans))
    return whole + gpu_table(json.loads(GPU_PLANS.read_text())) if GPU_PLANS.exists() else whole


def sees(path: Path) -> bool:
    """Whether the file has the sizes of a vision model."""
    return len(json.loads(path.read_text()).get("vision_config", {})) > 1


def plan(path: Path, chip: str) -> dict[str, Any]:
    """Figures of a model on the fewest chips that hold it, or why there are none."""
    found: dict[str, Any] = {}
    for chips, topology in TOPOLOGIES.items():
        report = _report(path, chip, chips, topology if chip == "v6e" else None)
        found = {"chips": chips, "problem": report["reason"]} if not report.get("fits") else _figures(chips, report)
        if report.get("fits"):
            break
    return found


def _report(path: Path, chip: str, chips: int, topology: str | None) -> dict[str, Any]:
    longest = _read(json.loads(path.read_text())).context_length
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(path.read_text())
        command = ["plan", folder, "--device", chip, *(["--topology", topology] if topology else [])]
        command += ["--tensor-parallel-size", str(chips), "--json"]
        command += FLAGS.get(path.stem, [])
        command += ["--max-model-len", str(LONGEST)] if longest > LONGEST else []
        # In this process: JAX and the chip's compiler take longer to load than a small model takes to compile.
        out, problems = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(problems):
            code = run_command(command)
    if code:
        return {"fits": False, "reason": problems.getvalue().strip().splitlines()[-1][-200:]}
    report: dict[str, Any] = json.loads(out.getvalue())
    return report


def compiled_layers(path: Path, times: int = 1) -> tuple[int, int]:
    """Layers of a published model, or of one that is so many times as deep, and how many of them are compiled."""
    values = json.loads(path.read_text())
    text = values.get("text_config", values)
    each = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "layer_types", "hybrid_override_pattern")
    text |= {name: text[name] * times for name in each if name in text}
    layers = _read(values).layers
    return len(layers), sum(segment.period for segment in segments_of(layers))


def _read(values: dict[str, Any]) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values))
        return read_config(Path(folder))


def _figures(chips: int, report: dict[str, Any]) -> dict[str, Any]:
    memory, steps = report["memory"], report["steps"]
    compiled = [step["compile_seconds"] for step in steps if step["compile_seconds"]]
    times = {(step["estimate"]["work"], step["tokens"]): step["estimate"]["seconds"] for step in steps}
    return {
        "chips": chips,
        "attention": report["attention_backend"],
        "weights": memory["weights"] * chips,
        "kv_bytes_per_token": round(memory["kv_cache"] * chips / report["kv_tokens"]),
        "kv_tokens": report["kv_tokens"],
        "compile_seconds": round(max(compiled), 1),
        "decode_ms": round(times["decode", 64] * 1000, 1),
        "prefill_ms": round(times.get(("prefill", 8192), 0) * 1000, 1) or None,
    } | ({"images": report["images"]} if report["images"] else {})


def rows(plans: dict[str, Any]) -> Iterator[str]:
    """Rows of the table."""
    paths = {json.loads(path.read_text())["_name_or_path"]: path for path in FOLDER.glob("*.json")}
    depths = {name: "{} ({})".format(*compiled_layers(path)) for name, path in paths.items() if name in plans}
    for name, found in sorted(plans.items(), key=lambda item: item[0].lower()):
        if "problem" in found:
            yield f"| {name} | - | {depths[name]} | | | | | | |\n"
            continue
        prefill = "-" if found["prefill_ms"] is None else f"{found['prefill_ms']:,.0f}"
        weights, kv = found["weights"] / 2**30, found["kv_bytes_per_token"] / 1024
        yield (
            f"| {name} | {found['chips']} | {depths[name]} | {weights:.1f} | {kv:.0f} | {found['kv_tokens']:,} | "
            f"{found['compile_seconds']:.0f} | {found['decode_ms']:.1f} | {prefill} |\n"
        )


def image_rows(plans: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Rows of the table of images, by chip."""
    for name in sorted(plans["v5p"], key=str.lower):
        for chip, found in plans.items():
            for each in found[name].get("images", []):
                if each["compile_seconds"] is None:
                    continue
                yield (
                    f"| {name} | {chip} | {each['patches']:,} | {each['rows']:,} | {each['compile_seconds']:.0f} | "
                    f"{each['temporaries'] / 2**30:.2f} | {each['seconds'] * 1000:.1f} |\n"
                )


def gpu_table(plans: dict[str, dict[str, Any]]) -> str:
    """The table of a described GPU: towers and steps of each model."""
    return GPU_HEAD + "".join(row for name in sorted(plans, key=str.lower) for row in gpu_rows(name, plans[name]))


def gpu_rows(name: str, found: dict[str, Any]) -> Iterator[str]:
    """Rows of one model: its tower, then its steps."""
    image = found["image"]
    programs = [(f"an image of {image['patches']:,} patches", image)]
    programs += [
        (f"{each['tokens']} decodes" if each["tokens"] == each["rows"] else f"a prompt of {each['tokens']:,}", each)
        for each in found["steps"]
    ]
    for what, each in programs:
        roofline = f"{each['roofline'] * 1000:.1f}" if "roofline" in each else ""
        yield (
            f"| {name} | {found['weights'] / 2**30:.1f} | {what} | {each['compile_seconds']:.0f} | "
            f"{each['temporaries'] / 2**30:.2f} | {each['kernels']:,} | {each['from_host']} | {each['waits']} | "
            f"{roofline} |\n"
        )


if __name__ == "__main__":
    sys.exit(main())
