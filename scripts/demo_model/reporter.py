"""Progress display and checkpoints of a training run."""

from __future__ import annotations

import time
from pathlib import Path

import jax
from tqdm import tqdm

from scripts.demo_model import export
from scripts.demo_model.training import Progress, Run

_SHOW_SECONDS = 5.0


class Reporter:
    """Shows the progress of a run and saves a checkpoint every few minutes."""

    def __init__(self, seed: int, folder: Path, state: Path | None, minutes: float) -> None:
        """Takes the run's seed, the folder and the file to save to, and the minutes between checkpoints."""
        self._seed, self._folder, self._state, self._minutes = seed, folder, state, minutes
        self._first: int | None = None
        self._saved = self._shown = time.monotonic()
        self._loss = 0.0
        self._bar = tqdm(total=100.0, unit="%", bar_format="{l_bar}{bar}| {elapsed} {postfix}")
        self._note: dict[str, str] = {}

    def __call__(self, progress: Progress, run: Run) -> None:
        """Takes note of one step."""
        if self._first is None:
            self._first, self._loss = progress.step - 1, progress.loss
        self._loss = 0.98 * self._loss + 0.02 * progress.loss
        self._bar.n = round(100 * progress.share, 1)
        speed = progress.tokens_per_step * (progress.step - self._first) / max(progress.seconds, 1e-9)
        self._bar.set_postfix_str(f"step {progress.step}, loss {self._loss:.4f}, {speed:,.0f} tokens/s", refresh=False)
        if time.monotonic() - self._shown > _SHOW_SECONDS:
            self._bar.refresh()
            self._shown = time.monotonic()
        self._note = {
            "seed": str(self._seed),
            "steps": str(progress.step),
            "tokens": str(round(progress.step * progress.tokens_per_step)),
            "device": jax.default_backend().upper(),
        }
        if self._first:
            self._note["continued"] = str(self._first)
        if time.monotonic() - self._saved > 60 * self._minutes:
            self.save(run)
            self._saved = time.monotonic()

    def save(self, run: Run) -> None:
        """Saves the averaged weights, and what is needed to go on."""
        export.save_weights(run.averaged, self._folder, self._note)
        if self._state:
            export.save_run(run, self._state)

    def close(self) -> None:
        """Ends the display."""
        self._bar.close()
