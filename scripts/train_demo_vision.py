"""Trains and evaluates the demo model that sees, `models/demo_vision`; run it with `--help`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
from tokenizers import Tokenizer
from tqdm import tqdm

from scripts.demo_model.export import load as load_demo
from scripts.demo_model.export import load_tokenizer
from scripts.demo_model.network import Params, Shape
from scripts.demo_model.training import Schedule, optimizer
from scripts.demo_vision import card, chat, export
from scripts.demo_vision.evaluate import evaluate
from scripts.demo_vision.network import VisionShape, initial_vision, is_of_vision
from scripts.demo_vision.pretraining import quarters, words_of
from scripts.demo_vision.pretraining import update as update_vision
from scripts.demo_vision.training import Clock, batches, begin, update


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.train_demo_vision",
        description="Train the demo model that sees from the weights of the demo model, and write its card.",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of pictures and weights (default: %(default)s)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="train by the clock: that long (default: 30)")
    length.add_argument("--steps", type=int, help="train that many steps instead")
    parser.add_argument(
        "--pretraining-steps",
        type=int,
        default=3000,
        help="steps of the vision model alone, before (default: %(default)s)",
    )
    parser.add_argument("--batch", type=int, default=32, help="pictures per step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.005, help="highest rate (default: %(default)s)")
    parser.add_argument("--demo", type=Path, default=Path("models/demo"), help="folder of the demo model")
    parser.add_argument("--out", type=Path, default=Path("models/demo_vision"), help="model folder")
    parser.add_argument("--go-on", action="store_true", help="train both models in --out further")
    parser.add_argument("--evaluate", action="store_true", help="train nothing: evaluate the model in --out")
    parser.add_argument("--questions", type=int, default=512, help="held-out questions (default: %(default)s)")
    return parser.parse_args()


def _pretrain(
    arguments: argparse.Namespace, vision: VisionShape, params: Params, words: tuple[jax.Array, ...]
) -> Params:
    """The vision transformer, trained to say in each row what is in its quarter of a picture."""
    if not arguments.pretraining_steps:
        return params
    state, schedule = (
        optimizer(params).init(params),
        Schedule(arguments.learning_rate, arguments.pretraining_steps, None),
    )
    bar, mean = tqdm(total=arguments.pretraining_steps, desc="seeing"), 0.0
    for step, batch in enumerate(quarters(64, arguments.seed)):
        rate = schedule.rate(step, 0.0)
        if rate is None:
            break
        params, state, _, right = update_vision(
            vision, params, state, words, jnp.float32(rate), batch.pictures, batch.classes
        )
        mean = 0.98 * mean + 0.02 * float(right)
        bar.update()
        bar.set_postfix_str(f"{mean:.1%} of rows right")
    bar.close()
    return params


def _fresh(arguments: argparse.Namespace, vision: VisionShape) -> tuple[Params, Params, Shape, Tokenizer]:
    """The demo model with tokens for images, and a vision transformer whose rows it can read."""
    tokenizer = export.tokenizer_of(arguments.demo)
    language, shape, _, _ = load_demo(arguments.demo)
    language = export.with_tokens(language, load_tokenizer(arguments.demo), arguments.seed)
    shape = replace(shape, vocab=tokenizer.get_vocab_size())
    export.save_files(tokenizer, shape, vision, arguments.out)
    fresh = initial_vision(vision, shape.hidden, arguments.seed)
    return language, _pretrain(arguments, vision, fresh, words_of(language, tokenizer)), shape, tokenizer


def _train(arguments: argparse.Namespace) -> None:
    vision, seed, before = VisionShape(), arguments.seed, 0
    if arguments.go_on:
        both, shape, vision, tokenizer, note = export.load(arguments.out)
        before = int(note["steps"])
        seed += before
        language = {name: array for name, array in both.items() if not is_of_vision(name)}
        seeing = {name: array for name, array in both.items() if is_of_vision(name)}
        seeing = _pretrain(arguments, vision, seeing, words_of(language, tokenizer))
    else:
        language, seeing, shape, tokenizer = _fresh(arguments, vision)
    run = begin(language)
    minutes = arguments.minutes or (None if arguments.steps else 30.0)
    schedule, clock = Schedule(arguments.learning_rate, arguments.steps, minutes), Clock()
    bar = tqdm(total=100.0, unit="%", bar_format="{l_bar}{bar}| {elapsed} {postfix}")
    params, averaged, state, step = run
    mean = 0.0
    for batch in batches(tokenizer, vision, arguments.batch, seed):
        rate = schedule.rate(step, clock.seconds)
        if rate is None:
            break
        first = batch.tokens[0].tolist().index(tokenizer.token_to_id(chat.IMAGE))
        params, averaged, state, loss = update(
            shape, vision, first, params, averaged, state, seeing, jnp.float32(rate), batch.tokens,
            batch.weights, batch.pictures,
        )  # fmt: skip
        step += 1
        mean = float(loss) if step == 1 else 0.98 * mean + 0.02 * float(loss)
        bar.n = round(100 * schedule.progress(step, clock.seconds), 1)
        bar.set_postfix_str(f"step {step}, loss {mean:.4f}, {clock.seconds / step:.2f} s a step")
    bar.close()
    note = {"seed": str(arguments.seed), "steps": str(before + step), "batch": str(arguments.batch)}
    export.save_weights({**averaged, **seeing}, vision, arguments.out, note)


def main() -> None:
    """Runs the command line."""
    arguments = _arguments()
    if not arguments.evaluate:
        _train(arguments)
    params, shape, vision, tokenizer, run = export.load(arguments.out)
    figures = evaluate(params, shape, vision, tokenizer, arguments.questions)
    card.write(arguments.out, figures, params, run)
    for kind, (asked, right) in figures.items():
        print(f"{kind:12} {asked:4} questions  {right / asked:6.1%} right")
    asked, right = (sum(each[number] for each in figures.values()) for number in (0, 1))
    print(f"{'all':12} {asked:4} questions  {right / asked:6.1%} right")


if __name__ == "__main__":
    main()
