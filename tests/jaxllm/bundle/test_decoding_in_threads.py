"""Executables are read by several threads at once, each decoding how its own is called."""

from tests.conftest import RunPython

DECODE = """
import sys, threading
sys.setswitchinterval(1e-6)
import msgspec
from jaxllm.bundle import portable
from jaxllm.bundle.portable import SavedArray, SavedCall

text = msgspec.json.encode(SavedCall("x", [0], [SavedArray("float32", [1], None)], [], True))
content = memoryview(len(text).to_bytes(portable._LENGTH, "little") + text)
portable.load = lambda data, call, *others: call
threads, calls = 16, []
barrier = threading.Barrier(threads)

def read():
    barrier.wait()
    calls.append(portable.from_bytes(content, (), None, None))

running = [threading.Thread(target=read) for _ in range(threads)]
for each in running:
    each.start()
for each in running:
    each.join()
assert len(calls) == threads
"""


def test_threads_decode_at_once(run_python: RunPython) -> None:
    """Msgspec 0.22 crashed every second time where the first of them looked at the type."""
    for _ in range(6):
        done = run_python("-c", DECODE)
        assert done.returncode == 0, (done.returncode, done.stderr)
