"""`jaxllm generate`: text from prompts, offline."""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import msgspec

from jaxllm.errors import ConfigError, RequestError, RequestFaultError
from jaxllm.flags import FlagParser, add_engine_flags, explicit_options
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.cli.batch_file import BatchLine, ResultWriter, read_lines
from jaxllm.serving.cli.sampling_flags import add_sampling_flags, explicit_sampling
from jaxllm.serving.llm.interrupts import DeferredInterrupt
from jaxllm.serving.llm.progress import GenerationProgress
from jaxllm.serving.text.outputs import RequestOutput

if TYPE_CHECKING:
    # These load JAX, which a wrong flag should not have to wait for.
    from jaxllm.serving.llm.llm import LLM
    from jaxllm.serving.llm.llm_engine import LLMEngine
    from jaxllm.serving.text.input_processor import TextRequest

HELP = "Generate text from one prompt, streamed to the terminal, or from a file of prompts."
USAGE = "(--prompt TEXT | --prompts-file FILE) [flags]"
EXAMPLES = """examples:
  jaxllm generate --prompt "Once upon a time"
  jaxllm generate --prompt "What is 2 + 3?" --system "Be brief." --temperature 0
  jaxllm generate --model path/to/model --prompt "1, 2, 3," --max-tokens 20 --stop 10
  jaxllm generate --prompts-file prompts.txt --output results.jsonl --n 2
  echo '{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}' > chats.jsonl
  jaxllm generate --prompts-file chats.jsonl

A file named *.jsonl holds one JSON object per line: "prompt" (text or token IDs) or "messages" (with optional
"tools"), sampling parameters, and "id", which is copied to the result. Any other file holds one prompt per line.
Results are JSON lines in the same order. After Ctrl-C, finished results are kept."""

# vLLM's 16 tokens are too few to see anything.
MAX_TOKENS = 256


def add_arguments(parser: FlagParser) -> None:
    """Declare prompts, sampling parameters and every engine option."""
    parser.epilog = EXAMPLES
    group = parser.add_argument_group("prompts and results")
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="A single prompt; the output is printed as it is generated.")
    source.add_argument(
        "--prompts-file", metavar="FILE", help="A file of prompts, one per line; '-' reads standard input."
    )
    group.add_argument(
        "--output", metavar="FILE", help="Write results to this file as JSON lines instead of to the terminal."
    )
    group.add_argument(
        "--chat", action="store_true", help="Treat prompts as user messages and apply the chat template."
    )
    group.add_argument("--system", metavar="TEXT", help="System message before each prompt; implies --chat.")
    group.add_argument(
        "--chat-template", metavar="FILE", help="Chat template to use instead of the model's: a file or Jinja text."
    )
    add_sampling_flags(parser, {"max_tokens": MAX_TOKENS})
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Generate; 0 when all went well. Errors are raised, `KeyboardInterrupt` included."""
    sampling = explicit_sampling(args)
    SamplingParams(**sampling)
    single = args.prompts_file is None
    lines = [BatchLine(1, {"prompt": args.prompt}, sampling)] if single else _read_file(args.prompts_file, sampling)
    with ExitStack() as stack:
        # Before the model is loaded: what cannot be written should not be computed.
        file: IO[str] = sys.stdout if args.output is None else stack.enter_context(_open_output(args.output))
        from jaxllm.serving.llm.llm import LLM

        llm = stack.enter_context(LLM(**explicit_options(args), chat_template=args.chat_template))
        requests = _Prompts(llm, chat=args.chat, system=args.system).prepare(lines, single)
        if single and args.output is None:
            _stream(llm.llm_engine, requests[0])
        else:
            _batch(llm.llm_engine, requests, ResultWriter(file, lines))
    return 0


def _read_file(name: str, sampling: Mapping[str, Any]) -> list[BatchLine]:
    """Raises `ConfigError` when the file cannot be read, and `RequestError` naming the file and line that is wrong."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --prompts-file: {error}") from None
    as_json = name.endswith((".jsonl", ".json")) or (name == "-" and text.lstrip().startswith("{"))
    try:
        # Not splitlines(): that would also cut at the rarer separators inside a text.
        return read_lines(text.split("\n"), as_json=as_json, sampling=sampling)
    except RequestError as error:
        raise RequestError(f"{name}: {error}", error.parameter) from None


def _open_output(name: str) -> IO[str]:
    try:
        return Path(name).open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write --output: {error}") from None


class _Prompts:
    """Turns lines into requests for one model."""

    def __init__(self, llm: "LLM", *, chat: bool, system: str | None) -> None:
        self._llm = llm
        self._chat = chat or system is not None
        self._system = [] if system is None else [{"role": "system", "content": system}]
        # What is not said by flag or line: the model's recommendation.
        self._defaults = {"max_tokens": MAX_TOKENS, **msgspec.to_builtins(llm.get_default_sampling_params())}

    def prepare(self, lines: Sequence[BatchLine], single: bool) -> list["TextRequest"]:
        """One request per line; a `single` one is a stream. Raises `RequestError` that names the line."""
        requests = []
        for index, line in enumerate(lines):
            try:
                requests.append(self._prepare(str(index), line, single))
            except RequestError as error:
                raise error if single else RequestError(f"line {line.number}: {error}", error.parameter) from None
        return requests

    def _prepare(self, request_id: str, line: BatchLine, single: bool) -> "TextRequest":
        params = SamplingParams(**{**self._defaults, **line.sampling})
        messages = line.given.get("messages")
        prompt: Any = line.given.get("prompt")
        if messages is None and self._chat and isinstance(prompt, str):
            messages = [*self._system, {"role": "user", "content": prompt}]
        if messages is not None:
            prompt = self._llm.render_chat(messages, tools=line.given.get("tools"))
        (request,) = self._llm.llm_engine.inputs.prepare(
            [prompt],
            params,
            [request_id],
            stream=single and params.num_sequences == 1,
            add_special_tokens=messages is None,
        )
        return request


def _stream(engine: "LLMEngine", request: "TextRequest") -> None:
    """Print one request's text as it comes; several sequences one after another, at the end."""
    with DeferredInterrupt() as interrupt, Speed() as speed:
        engine.add([request])
        while engine.has_unfinished_requests():
            for output in engine.step():
                speed.count(output)
                for completion in output.outputs:
                    title = f"--- {completion.index} ---\n" if request.params.n > 1 else ""
                    end = "\n" if completion.finished() else ""
                    sys.stdout.write(title + completion.text + end)
                sys.stdout.flush()
            interrupt.check()


def _batch(engine: "LLMEngine", requests: Sequence["TextRequest"], writer: ResultWriter) -> None:
    """Run all requests and write the results; what is finished is written even when interrupted.

    Where the code here fails for a line, the others go on to their ends. Raises `RequestFaultError` for the first.
    """
    fault: RequestFaultError | None = None
    with GenerationProgress(len(requests), sys.stderr.isatty()) as bar, DeferredInterrupt() as interrupt:
        try:
            with Speed() as speed:
                engine.add(requests)
                while engine.has_unfinished_requests():
                    try:
                        outputs = engine.step()
                    except RequestFaultError as error:
                        fault, outputs = fault or error, []  # what came of the others is in the next
                    for output in outputs:
                        speed.count(output)
                        writer.add(int(output.request_id), output)
                    bar.update(outputs)
                    interrupt.check()
        finally:
            writer.flush()
    if fault is not None:
        raise fault


class Speed:
    """Counts tokens and, at the end of a `with` block, says on stderr how fast it went."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._first: list[float] = []

    def count(self, output: RequestOutput) -> None:
        """Take a result, or a part of one."""
        self._output_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        if output.finished:
            self._prompt_tokens += len(output.prompt_token_ids)
            if output.metrics is not None and output.metrics.time_to_first_token is not None:
                self._first.append(output.metrics.time_to_first_token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        seconds = max(time.monotonic() - self._start, 1e-9)
        first = f", first token after {statistics.median(self._first) * 1000:.0f} ms" if self._first else ""
        median = " (median)" if len(self._first) > 1 else ""
        sys.stderr.write(
            f"\n[{self._prompt_tokens} prompt tokens, {self._output_tokens} output tokens in {seconds:.2f} s: "
            f"{self._output_tokens / seconds:.1f} tokens/s{first}{median}]\n"
        )
