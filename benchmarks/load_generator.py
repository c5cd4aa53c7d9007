"""How many tokens per second `jaxllm bench serve` can take from streams, and what each costs it.

A process that only writes streams stands for the server: every stream gets an event per token, at a pace that is asked
for. The client is that of `jaxllm bench serve`, in this process; its processor time is what is measured.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence

from jaxllm.serving.bench.client import LoadTarget
from jaxllm.serving.bench.datasets.request import LoadRequest
from jaxllm.serving.bench.load import run_load
from jaxllm.serving.bench.measurements import Measurements
from jaxllm.serving.bench.report import summarise
from jaxllm.serving.server.event_loop import run_on_fast_loop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(value: object) -> bytes:
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(tokens: int, pace: float) -> None:
    """Answer every request with `tokens` events, `pace` of them per second; prints the port."""
    base = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1700000000, "model": "m"}
    choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": None, "stop_reason": None}
    event = _chunk({**base, "choices": [choice]})
    usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
    end = _chunk({**base, "choices": [], "usage": usage}) + _chunk(b"[DONE]") + b"0\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
                start = time.perf_counter()
                writer.write(HEAD)
                for number in range(tokens):
                    await asyncio.sleep(start + number / pace - time.perf_counter())
                    writer.write(event)
                writer.write(end)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


def measure(streams: int, rate: float, seconds: float) -> dict[str, float]:
    """`streams` at once that bring `rate` tokens per second together, for so many seconds."""
    pace = rate / streams
    tokens = max(1, round(pace * seconds))
    command = [sys.executable, "-m", "benchmarks.load_generator", "--serve", str(tokens), str(pace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            target = LoadTarget(url=f"http://127.0.0.1:{int(server.stdout.readline())}/v1/completions", model="m")
            measured = Measurements()
            wall, busy = time.perf_counter(), time.process_time()
            run_on_fast_loop(run_load(target, [LoadRequest("p", tokens)] * streams, [0.0] * streams, measured.add))
            busy, wall = time.process_time() - busy, time.perf_counter() - wall
        finally:
            server.kill()
    result = summarise(measured, wall)
    return {
        "streams": streams,
        "asked_tokens_per_s": rate,
        "tokens_per_s": result["output_throughput"],
        "failed": result["failed"],
        "cpu_share_of_a_core": busy / wall,
        "cpu_us_per_token": busy / result["total_output_tokens"] * 1e6,
        "tokens_per_chunk": result["tokens_per_chunk"],
        "asked_gap_ms": 1e3 / pace,
        "p99_gap_ms": result["p99_itl_ms"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256, 1024], help="streams at once")
    parser.add_argument("--rates", type=float, nargs="+", default=[5_000.0], help="tokens per second, together")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--serve", nargs=2, metavar=("TOKENS", "PACE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        import uvloop

        uvloop.run(serve(int(given.serve[0]), float(given.serve[1])))
        return
    results = [measure(streams, rate, given.seconds) for rate in given.rates for streams in given.streams]
    if given.json:
        print(json.dumps(results, indent=1))
        return
    print("  ".join(f"{name:>19}" for name in results[0]))
    for result in results:
        print("  ".join(f"{value:19.2f}" for value in result.values()))


if __name__ == "__main__":
    main()
