import os
import sys

from jaxllm.doctor.result import Context, Outcome


def run(context: Context) -> Outcome:
    sys.stdout.write("a library says hello\n")
    os.write(1, b"and so does its C code\n")
    context.say("something")
    return Outcome("well", {"seconds": context.settings.seconds, "platforms": os.environ.get("JAX_PLATFORMS")})
