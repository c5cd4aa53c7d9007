from jaxllm.doctor.result import Context, Outcome
from jaxllm.errors import ConfigError


def run(context: Context) -> Outcome:
    raise ConfigError(f"model {context.settings.model!r}: no such folder")
