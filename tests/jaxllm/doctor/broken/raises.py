from jaxllm.doctor.result import Context, Outcome


def run(context: Context) -> Outcome:
    raise RuntimeError(f"RESOURCE_EXHAUSTED: out of memory with {context.settings.model}")
