"""Progress bars: of loading a model, and of offline generation."""

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from jaxllm.serving.text.outputs import RequestOutput

if TYPE_CHECKING:
    from jaxllm.serving.pooling.outputs import PoolingRequestOutput

UseTqdm = bool | Callable[..., Any]
"""Whether to show a bar; or what makes one, called with tqdm's arguments."""


class GenerationProgress:
    """Counts finished prompts and shows tokens per second. A context manager; does nothing when not wanted."""

    def __init__(self, total: int, use_tqdm: UseTqdm, description: str = "Processed prompts") -> None:
        self._bar: Any = None
        if use_tqdm and total:
            make = use_tqdm if callable(use_tqdm) else _tqdm()
            self._bar = make(total=total, desc=description, dynamic_ncols=True, postfix=_speeds(0, 0, 1.0))
        self._start = time.monotonic()
        self._prompt_tokens = 0
        self._output_tokens = 0

    def update(self, outputs: "Iterable[RequestOutput | PoolingRequestOutput]") -> None:
        """Count those of `outputs` that are finished."""
        if self._bar is None:
            return
        for output in outputs:
            if output.finished:
                self.count(len(output.prompt_token_ids), output.num_output_tokens)

    def count(self, prompt_tokens: int, output_tokens: int) -> None:
        """Count one that is finished."""
        if self._bar is None:
            return
        self._prompt_tokens += prompt_tokens
        self._output_tokens += output_tokens
        elapsed = max(time.monotonic() - self._start, 1e-9)
        # Without refresh: the bar itself decides when to draw.
        self._bar.set_postfix_str(_speeds(self._prompt_tokens, self._output_tokens, elapsed), refresh=False)
        self._bar.update(1)

    def say(self, text: str) -> None:
        """Write a line to stderr, above the bar if there is one."""
        if self._bar is None:
            sys.stderr.write(f"{text}\n")
        else:
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoadProgress:
    """Shows the stages of loading a model as bars, one after another: a `jaxllm.config.progress.Progress`."""

    def __init__(self, show: bool | None = None) -> None:
        """None: only where somebody watches, in a terminal or a notebook."""
        self._show = (sys.stderr.isatty() or "ipykernel" in sys.modules) if show is None else show
        self._bars: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` is done of `stage`. From any thread."""
        if not self._show or total <= 0:
            return
        with self._lock:
            bar = self._bars.get(stage)
            if bar is None:
                in_bytes = {"unit": "B", "unit_scale": True, "unit_divisor": 1024} if total > 2**20 else {}
                bar = self._bars[stage] = _tqdm()(total=total, desc=stage, dynamic_ncols=True, **in_bytes)
            bar.update(done - bar.n)
            if done >= total:
                bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for bar in self._bars.values():
            bar.close()


def _speeds(prompt_tokens: int, output_tokens: int, seconds: float) -> str:
    return f"input: {prompt_tokens / seconds:.1f} toks/s, output: {output_tokens / seconds:.1f} toks/s"


def _tqdm() -> Any:
    with warnings.catch_warnings():
        # In a notebook without ipywidgets tqdm falls back to text, which needs no warning.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm

    return tqdm
