"""Answers the prompts of Parquet files with Ray Data. If it is stopped, the same command resumes.

The input has the columns `id` (unique) and `prompt`; the output also has `answer`.
"""

import argparse
from pathlib import Path
from typing import Any

import ray
from ray.data import DataContext
from ray.data.checkpoint import CheckpointConfig

from jaxllm import LLM, SamplingParams


class Answer:
    """An engine in a Ray actor, loaded once to answer many batches."""

    def __init__(self, model: str, max_tokens: int, rows: int) -> None:
        self.llm = LLM(model, max_num_seqs=min(rows, 256))
        self.params = SamplingParams(temperature=0, max_tokens=max_tokens)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with its answers."""
        outputs = self.llm.generate(list(batch["prompt"]), self.params, use_tqdm=False)
        return {**batch, "answer": [output.outputs[0].text for output in outputs]}


def main() -> None:
    """Read prompts, answer those without an answer, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--max-tokens", type=int, default=64)
    # At most so many for each engine are lost by being killed.
    parser.add_argument("--rows", type=int, default=500, help="rows that are answered together, written and noted")
    parser.add_argument("--engines", type=int, default=1, help="actors, each with an engine")
    parser.add_argument("--chips", type=float, default=0, help="TPU chips for each, 0 on CPU")
    args = parser.parse_args()

    # Ray Data records the IDs of every written block, and skips them next time.
    DataContext.get_current().checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=f"{args.output}.checkpoint", delete_checkpoint_on_success=False
    )
    prompts = ray.data.read_parquet(str(args.input)).repartition(target_num_rows_per_block=args.rows)
    answers = prompts.map_batches(
        Answer,
        fn_constructor_args=(args.model, args.max_tokens, args.rows),
        batch_size=args.rows,
        concurrency=args.engines,
        num_cpus=1,
        resources={"TPU": args.chips} if args.chips else {},
    )
    answers.write_parquet(str(args.output), mode="append")


if __name__ == "__main__":
    main()
