import subprocess
import time

from jaxllm.doctor.result import Context, Outcome


def run(context: Context) -> Outcome:
    child = subprocess.Popen(["sleep", "600"])
    (context.scratch / "pid").write_text(str(child.pid))
    context.say("waiting for a device that never answers")
    time.sleep(600)
    raise AssertionError
