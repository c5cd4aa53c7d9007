"""Trains and evaluates the demo model, `models/demo`; run it with `python -m scripts.train_demo_model --help`."""

from __future__ import annotations

import argparse
import signal
from itertools import islice
from pathlib import Path
from random import Random

from tqdm import tqdm

from scripts.demo_model import card, corpus, export, packing, tokenizer
from scripts.demo_model.embedding import initial_embedding
from scripts.demo_model.evaluate import Figures, evaluate
from scripts.demo_model.network import Shape
from scripts.demo_model.reporter import Reporter
from scripts.demo_model.training import Run, Schedule, train

_TOKENIZER_DOCUMENTS = 20_000

_EPILOG = """\
examples:
  python -m scripts.train_demo_model                          train for 50 minutes, then evaluate, into models/demo
  python -m scripts.train_demo_model --minutes 5 --out /tmp/m a quick model, to see the loss fall
  python -m scripts.train_demo_model --evaluate               figures of models/demo again, and its card

Ctrl-C once: the run ends well, with some last steps in which the learning rate falls to zero. Twice: it stops
at once; the last checkpoint in --out is a whole model, and --state continues from it if it was given from the start.
"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.train_demo_model",
        description="Train the demo model on text generated from a seed, evaluate it and write its card.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of text and weights (default: %(default)s)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="train by the clock: that long (default: 50)")
    length.add_argument("--steps", type=int, help="train that many steps instead, which gives the same model again")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="highest rate (default: %(default)s)")
    parser.add_argument("--checkpoint", type=float, default=3.0, help="minutes between checkpoints (default: 3)")
    parser.add_argument("--state", type=Path, help="file to save the run in at checkpoints, and to continue from")
    parser.add_argument("--out", type=Path, default=Path("models/demo"), help="model folder (default: %(default)s)")
    parser.add_argument("--evaluate", action="store_true", help="train nothing: evaluate the model in --out")
    parser.add_argument("--prompts", type=int, default=200, help="held-out prompts to answer (default: %(default)s)")
    parser.add_argument("--verbose", action="store_true", help="show every wrong answer of the evaluation")
    return parser.parse_args()


def _train(arguments: argparse.Namespace) -> None:
    shape = Shape()
    if arguments.state and arguments.state.exists():
        # A run goes on with the tokens it began with, also when the corpus has changed since.
        vocabulary = export.load_tokenizer(arguments.out)
    else:
        vocabulary = tokenizer.train(islice(corpus.mixed(Random(arguments.seed)), _TOKENIZER_DOCUMENTS), shape.vocab)
        export.save_tokenizer(vocabulary, shape, arguments.out)
    minutes = arguments.minutes or (None if arguments.steps else 50.0)
    schedule = Schedule(arguments.learning_rate, arguments.steps, minutes)
    data = packing.batches(vocabulary, corpus.documents(arguments.seed + 1), arguments.tokens)
    reporter = Reporter(arguments.seed, arguments.out, arguments.state, arguments.checkpoint)
    state = arguments.state

    def finish(signum: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        schedule.finish()

    signal.signal(signal.SIGINT, finish)
    embedding = initial_embedding(vocabulary, shape, arguments.seed)

    def resume(fresh: Run) -> Run:
        return export.load_run(fresh, state) if state else fresh

    run = train(shape, arguments.seed, embedding, data, schedule, reporter, resume)
    reporter.save(run)
    reporter.close()


def _show(figures: Figures, verbose: bool) -> None:
    for kind, (count, right, stopped) in sorted(figures.by_kind().items()):
        print(f"{kind:12} {count:4} prompts  {right / count:6.1%} right  {stopped / count:6.1%} stopped")
    print(f"{'all':12} {len(figures.answers):4} prompts  {figures.right:6.1%} right  {figures.stopped:6.1%} stopped")
    print(f"held-out loss {figures.loss:.4f} nats per token over {figures.loss_tokens} tokens")
    for answer in figures.answers:
        if verbose and not (answer.right and answer.stopped):
            print(
                f"\n[{answer.item.kind}] {answer.item.prompt}\n  wanted: {answer.item.answer}\n  got:    {answer.text}"
            )


def main() -> None:
    """Runs the command line."""
    arguments = _arguments()
    if not arguments.evaluate:
        _train(arguments)
    params, shape, vocabulary, run = export.load(arguments.out)
    with tqdm(total=arguments.prompts, unit="prompt") as bar:
        figures = evaluate(params, shape, vocabulary, 0, arguments.prompts, bar.update)
    card.write(arguments.out, figures, params, shape, run)
    _show(figures, arguments.verbose)


if __name__ == "__main__":
    main()
