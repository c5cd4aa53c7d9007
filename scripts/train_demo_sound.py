"""Trains and evaluates the demo model that hears, `models/demo_sound`; run it with `--help`."""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import soundfile
from tqdm import tqdm

from jaxllm.serving.media.audio.resample import RATE
from scripts.demo_model.training import Schedule, optimizer
from scripts.demo_sound import card, export
from scripts.demo_sound.clips import CALM, HURRIED, clip
from scripts.demo_sound.evaluate import HELD_OUT, evaluate
from scripts.demo_sound.network import TABLES, initial_params
from scripts.demo_sound.tokens import make_tokenizer
from scripts.demo_sound.training import batches, update, words_in
from scripts.demo_sound.voices import recordings
from scripts.demo_vision.training import Clock


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.train_demo_sound",
        description="Train the demo model that hears, from what espeak-ng says, and write its card.",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of clips and weights (default: %(default)s)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="train by the clock: that long (default: 25)")
    length.add_argument("--steps", type=int, help="train that many steps instead")
    parser.add_argument("--batch", type=int, default=16, help="windows per step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.006, help="highest rate (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("models/demo_sound"), help="model folder")
    parser.add_argument("--go-on", action="store_true", help="train the model in --out further")
    parser.add_argument("--evaluate", action="store_true", help="train nothing: evaluate the model in --out")
    parser.add_argument("--example", type=Path, help="train nothing: write a held-out clip, and its words next to it")
    parser.add_argument("--windows", type=int, default=256, help="held-out windows (default: %(default)s)")
    return parser.parse_args()


def _train(arguments: argparse.Namespace) -> None:
    spoken, seed, before = recordings(held_out=False), arguments.seed, 0
    if arguments.go_on:
        params, shape, tokenizer, note = export.load(arguments.out)
        before = int(note["steps"])
        seed += before
    else:
        tokenizer = make_tokenizer()
        shape = export.shape_of(tokenizer)
        params = initial_params(shape, seed)
        export.save_files(tokenizer, shape, arguments.out)
    averaged, state = jax.tree.map(jnp.copy, params), optimizer(params, TABLES).init(params)
    words, no_speech = words_in(tokenizer)
    minutes = arguments.minutes or (None if arguments.steps else 25.0)
    schedule, clock = Schedule(arguments.learning_rate, arguments.steps, minutes), Clock()
    bar = tqdm(total=100.0, unit="%", bar_format="{l_bar}{bar}| {elapsed} {postfix}")
    step, mean = 0, 0.0
    for batch in batches(tokenizer, shape, spoken, arguments.batch, seed):
        rate = schedule.rate(step, clock.seconds)
        if rate is None:
            break
        params, averaged, state, loss, right = update(
            shape, words, no_speech, params, averaged, state, jnp.float32(rate), batch
        )
        step += 1
        mean = float(loss) if step == 1 else 0.98 * mean + 0.02 * float(loss)
        bar.n = round(100 * schedule.progress(step, clock.seconds), 1)
        bar.set_postfix_str(f"step {step}, loss {mean:.4f}, {float(right):.1%} of tokens right")
    bar.close()
    run = {"seed": str(arguments.seed), "steps": str(before + step), "batch": str(arguments.batch)}
    export.save_weights(averaged, shape, arguments.out, run)


def _write_example(path: Path) -> None:
    """31 s as Ogg: the first half has pauses in which a server may cut it, the second has none."""
    spoken, random = recordings(held_out=True), Random(HELD_OUT)
    halves = [clip(spoken, random, 15.5, pauses, 15.5) for pauses in (CALM, HURRIED)]
    soundfile.write(path, np.concatenate([each.samples for each in halves]), RATE, format="OGG", subtype="VORBIS")
    path.with_suffix(".txt").write_text(" ".join(each.text for each in halves) + "\n", encoding="utf-8")


def main() -> None:
    """Runs the command line."""
    arguments = _arguments()
    if arguments.example:
        _write_example(arguments.example)
        return
    if not arguments.evaluate:
        _train(arguments)
    params, shape, tokenizer, run = export.load(arguments.out)
    figures = evaluate(params, shape, tokenizer, recordings(held_out=True), arguments.windows)
    card.write(arguments.out, figures, params, run)
    print(f"{figures.words} words, {figures.errors} errors: {figures.errors / figures.words:.2%}")
    print(f"{figures.times} times, {figures.near} within 0.1 s: {figures.near / figures.times:.2%}")


if __name__ == "__main__":
    main()
