"""`python -m jaxllm.child MODULE [FOLDER]`: runs a module in a process that must not outlive the one that started it.

Not for people. The process that starts it holds the other end of its standard input, a pipe or a socket. A module
notices itself when that end is closed, but only once it is imported, which takes seconds of processor time, and only
while it runs. This is small, and looks before anything is imported.
"""

import os
import runpy
import select
import shutil
import signal
import sys
from typing import Any

if sys.platform == "linux":
    import ctypes
    import fcntl

    PR_SET_PDEATHSIG = 1
    """Of `linux/prctl.h`: the signal that a process gets when the thread that has started it is gone."""


def command(module: str, *folder: str) -> list[str]:
    """The command of a child that runs this module; the folder is removed if nobody is left to do that."""
    # -P: a file of the user's called jax.py must not be imported from the working directory.
    return [sys.executable, "-P", "-m", "jaxllm.child", module, *folder]


def imports_done() -> None:
    """The module sees to its end from here on."""
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    if sys.platform == "linux":
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) & ~os.O_ASYNC)
        # One that is stopped (SIGSTOP) when its parent goes must go on to see that. Not at its input, as before: it is
        # asked there whether it hangs, and a process that is stopped does. To one that runs, the signal does nothing.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def continue_at_input() -> None:
    """Have the system continue this process, if it is stopped, when its standard input is closed or brings something.

    No signal but SIGKILL ends a stopped process, so it could not notice that whoever has started it is gone.
    """
    if sys.platform == "linux":
        fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGCONT)
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def _watch(folders: list[str]) -> None:
    """End this process when its standard input is closed, until `imports_done`.

    A signal tells of that, and no thread, since a module may want to fork.
    """
    poller = select.poll()
    poller.register(0, 0)  # A hang-up is always told.

    def look(*_: Any) -> None:
        if poller.poll(0):
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)

    signal.signal(signal.SIGCONT, look)
    continue_at_input()
    look()  # It may have been closed before.


if __name__ == "__main__":
    del sys.argv[0]
    _watch(sys.argv[1:])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
