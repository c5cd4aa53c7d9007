"""Options of `vllm serve` that have no effect here; those of its engine are in `engine.py`."""

from jaxllm.compat.vllm.options.noop import off, only, switches, values

NOOP_SERVER_OPTIONS = {
    **values("health and metrics are never in the access log", "disable-access-log-for-endpoints"),
    **switches("the engine always runs in a separate process", "disable-frontend-multiprocessing"),
    **switches("the access log is off unless --access-log is given", "disable-uvicorn-access-log"),
    **switches("tools are enabled whenever the model's tool-call format is known", "enable-auto-tool-choice"),
    **switches("outputs are not logged", "enable-log-deltas", "enable-log-outputs"),
    **switches("/docs and /openapi.json need no network", "enable-offline-docs"),
    **switches("usage always includes cached prompt tokens", "enable-prompt-tokens-details"),
    **switches("/load always reports the load", "enable-server-load-tracking"),
    **switches("certificates are always reloaded when their files change", "enable-ssl-refresh"),
    **switches("internal errors are always logged with a traceback", "log-error-stack"),
    **values("--log-level applies to the whole server", "uvicorn-log-level"),
    **switches("reasoning is enabled whenever the model's reasoning format is known", "enable-reasoning"),
    **switches("models accept text only", "trust-request-mm-kwargs"),
    **values("strict tool schemas are always enforced", "tool-strict-level"),
    **switches("the token ID routes are always enabled: docs/token_ids.md", "enable-scale-out"),
    **switches("there is one server process with its engine", "enable-flash-late-interaction"),
    **values("there is one server process with its engine", "grpc-port", "data-parallel-supervisor-port",
             "dp-supervisor-probe-interval-s", "dp-supervisor-probe-timeout-s",
             "dp-supervisor-probe-failure-threshold"),
    **values("disabling thinking always disables it in the template", "anthropic-disabled-thinking-effort"),
    **switches("Cohere's formats are detected from the chat template", "cohere-is-reasoning-model"),
    **values("Cohere's formats are detected from the chat template", "cohere-format"),
    **only((), "the server runs no tools", "tool-server"),
    **off("not supported; the server offers HTTP, with text and token IDs", "grpc", "tokens-only"),
}  # fmt: skip
