"""Trains and evaluates the demo model's EAGLE-3 head; run it with `python -m scripts.train_demo_head --help`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from random import Random

import jax
import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from scripts.demo_head import card, export
from scripts.demo_head.network import HeadShape
from scripts.demo_head.training import acceptance, train
from scripts.demo_model import chat, corpus, held_out, packing
from scripts.demo_model.evaluate import prompt_text
from scripts.demo_model.export import load as load_model

_EPILOG = """\
examples:
  python -m scripts.train_demo_head                           train it, then evaluate, into models/demo_eagle3
  python -m scripts.train_demo_head --steps 50 --out /tmp/h   a quick head, to see the loss fall
  python -m scripts.train_demo_head --evaluate                figures of models/demo_eagle3 again, and its card
"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.train_demo_head",
        description="Train an EAGLE-3 head for the demo model on text generated from a seed, and write its card.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of text and weights (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="training steps (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens per step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.005, help="highest rate (default: %(default)s)")
    parser.add_argument("--unrolled", type=int, default=4, help="guesses from each token (default: %(default)s)")
    parser.add_argument("--taps", type=int, nargs="+", default=[1, 2, 3], help="layers whose inputs it reads")
    parser.add_argument("--model", type=Path, default=Path("models/demo"), help="the model (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("models/demo_eagle3"), help="folder (default: %(default)s)")
    parser.add_argument("--evaluate", action="store_true", help="train nothing: evaluate the head in --out")
    parser.add_argument("--prompts", type=int, default=200, help="held-out documents (default: %(default)s)")
    parser.add_argument("--guesses", type=int, default=4, help="guesses that are evaluated (default: %(default)s)")
    return parser.parse_args()


def _train(arguments: argparse.Namespace) -> None:
    model, shape, vocabulary, _ = load_model(arguments.model)
    data = packing.batches(vocabulary, corpus.mixed(Random(arguments.seed + 1)), arguments.tokens)
    own = HeadShape(taps=tuple(arguments.taps))
    mean = 0.0
    with tqdm(total=arguments.steps, unit="step") as bar:

        def report(step: int, loss: float) -> None:
            nonlocal mean
            mean = loss if step == 1 else 0.95 * mean + 0.05 * loss
            bar.set_postfix_str(f"loss {mean:.4f}", refresh=False)
            bar.update()

        params = train(
            model,
            shape,
            own,
            data,
            report,
            seed=arguments.seed,
            steps=arguments.steps,
            learning_rate=arguments.learning_rate,
            count=arguments.unrolled,
        )
    run = {
        "seed": str(arguments.seed),
        "steps": str(arguments.steps),
        "tokens": str(arguments.steps * arguments.tokens),
        "device": jax.default_backend().upper(),
    }
    export.save(params, shape, own, arguments.out, run)


def held_out_batches(vocabulary: Tokenizer, seed: int, count: int) -> Iterator[packing.Batch]:
    """Held-out requests with their ideal answers, in batches."""
    end = {True: chat.END, False: chat.SEPARATOR}
    texts = [prompt_text(item) + item.answer + end[item.chat] for item in held_out.prompts(seed, count)]
    ids = [np.array(vocabulary.encode(text, add_special_tokens=False).ids, np.int32) for text in texts]
    whole = packing.pack(ids, 512, packing.Weigher(vocabulary))
    for row in range(0, len(whole.tokens), 8):
        place = slice(row, row + 8)
        yield packing.Batch(whole.tokens[place], whole.documents[place], whole.weights[place])


def main() -> None:
    """Runs the command line."""
    arguments = _arguments()
    if not arguments.evaluate:
        _train(arguments)
    model, shape, vocabulary, _ = load_model(arguments.model)
    params, own, run = export.load(arguments.out)
    batches = held_out_batches(vocabulary, 1, arguments.prompts)
    rates = acceptance(params, model, shape, own, batches, arguments.guesses)
    card.write(arguments.out, rates, arguments.prompts, params, own, run)
    print("right:", " ".join(f"{rate:.1%}" for rate in rates), f"tokens a step: {1 + np.cumprod(rates).sum():.2f}")


if __name__ == "__main__":
    main()
