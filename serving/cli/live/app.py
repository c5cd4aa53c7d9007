"""The screen of `jaxllm top`: figures, a curve of the tokens per second, and the requests in flight."""

from collections.abc import Callable, Generator, Mapping
from time import sleep
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import DataTable, Footer, Sparkline, Static

from jaxllm.errors import ConfigError, JaxLLMError, RequestError
from jaxllm.serving.cli.live.history import History

Events = Callable[[], Generator[dict[str, Any]]]
"""Connects, and yields events until the server ends."""

_RETRY_SECONDS: Final = 2.0
_COLUMNS: Final = ("state", "age", "prompt", "cached", "output", "adapter")
_NUMBERS: Final = _COLUMNS[1:-1]
_TILES: Final = ("speed", "prompts", "requests", "cache", "first", "between", "prefix", "step")


class TopApp(App[None]):
    """Shows the events of a server until the person leaves; `error` says why it ended without."""

    TITLE = "jaxllm top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "Quit"), Binding("p", "pause", "Pause")]
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-narrow"), (76, "-medium"), (150, "-wide")]  # noqa: RUF012  Textual has it so
    CSS = """
    #head { height: 1; background: $primary; color: $text; padding: 0 1; }
    #tiles { layout: grid; grid-size: 4 2; grid-rows: 2; height: 5; padding: 0 1; margin-top: 1; grid-gutter: 0 2; }
    .-wide #tiles { grid-size: 8 1; height: 2; }
    .-narrow #tiles { grid-size: 2 4; height: 8; }
    #curve { height: 3; margin: 1 1 0 1; }
    #rows { height: 1fr; margin: 1 1 0 1; }
    """

    def __init__(self, url: str, events: Events) -> None:
        """`url` is shown; `events` runs in a thread."""
        super().__init__()
        self._url, self._events = url, events
        self._history: History | None = None
        self._paused = False
        self._note = "connecting"
        self.error: JaxLLMError | None = None

    def compose(self) -> ComposeResult:
        """The parts of the screen, from the top."""
        yield Static(id="head", markup=False)
        with Container(id="tiles"):
            for name in _TILES:
                yield Static(id=name, markup=False)
        yield Sparkline([], id="curve")
        yield DataTable(id="rows", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one("#rows", DataTable).add_columns(
            *(Text(each, justify="right" if each in _NUMBERS else "left") for each in _COLUMNS)
        )
        self._show_head()
        self.run_worker(self._read, thread=True)

    def action_pause(self) -> None:
        """Keep the screen as it is, or let it go on."""
        self._paused = not self._paused
        self._show_head()

    def _read(self) -> None:
        """Read events in a thread, and connect again when they end."""
        while self.is_running:
            try:
                for event in self._events():
                    if not self.is_running:
                        return
                    self.call_from_thread(self._take, event)
                note = "the server ended"
            except (ConfigError, RequestError) as error:
                # Asking again helps neither a wrong key nor a server without events.
                self.error = error
                self.call_from_thread(self.exit)
                return
            except JaxLLMError as error:
                note = str(error)
            if self.is_running:
                self.call_from_thread(self._say, f"{note}; trying again")
            sleep(_RETRY_SECONDS)

    def _say(self, note: str) -> None:
        self._note = note
        self._show_head()

    def _take(self, event: Mapping[str, Any]) -> None:
        if "bounds" in event:
            self._history = History(event["bounds"])
            return
        if self._history is None:
            return
        self._history.add(event)
        self._say(f"halted: {event['halted']}" if event["halted"] else "")
        if not self._paused:
            self._show(self._history, event)

    def _show_head(self) -> None:
        state = "paused" if self._paused else self._note
        self.query_one("#head", Static).update(f"jaxllm top  {self._url}" + (f"  [{state}]" if state else ""))

    def _show(self, history: History, now: Mapping[str, Any]) -> None:
        for name, (label, value) in tiles(history, now).items():
            self.query_one(f"#{name}", Static).update(Text.assemble((f"{label}\n", "dim"), (value, "bold")))
        self.query_one("#curve", Sparkline).data = history.speeds() or [0.0]
        table = self.query_one("#rows", DataTable)
        place = table.cursor_row
        table.clear()
        for row in now["rows"]:
            state, *numbers, adapter = cells(row)
            table.add_row(Text(state), *(Text(each, justify="right") for each in numbers), Text(adapter))
        table.move_cursor(row=place)


def tiles(history: History, now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """A label and a figure for each of `_TILES`."""
    step = now["step_seconds"] / now["steps"] if now["steps"] else None
    drafts = history.share("spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens")
    return {
        "speed": ("tokens/s", f"{history.rate('generation_tokens'):,.0f}"),
        "prompts": ("prompt tokens/s", f"{history.rate('prompt_tokens'):,.0f}"),
        "requests": ("running, waiting", f"{now['running']} of {now['capacity']}, {now['waiting']}"),
        "cache": ("KV cache", f"{now['kv_usage']:.0%}"),
        "first": ("first token, p95", _pair(history, "first_token")),
        "between": ("next token, p95", _pair(history, "between_tokens")),
        "prefix": ("prefix hits", _percent(history.share("prefix_cache_hits", "prefix_cache_queries"))),
        "step": ("mean step", duration(step)) if drafts is None else ("drafts accepted", _percent(drafts)),
    }


def cells(row: Mapping[str, Any]) -> list[str]:
    """The columns of a request."""
    state = "decode" if row["generated_tokens"] else "prefill"
    counts = (f"{row[name]:,}" for name in ("prompt_tokens", "cached_tokens", "generated_tokens"))
    return [state, duration(row["age_seconds"]), *counts, row["adapter"] or ""]


def duration(seconds: float | None) -> str:
    """Seconds in the unit that fits; a dash for None."""
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def _pair(history: History, name: str) -> str:
    return f"{duration(history.quantile(name, 0.5))}, {duration(history.quantile(name, 0.95))}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
