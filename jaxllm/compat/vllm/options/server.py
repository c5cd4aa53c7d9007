"""Options of `vllm serve` that have no effect here; those of its engine are in `engine.py`."""

from jaxllm.compat.vllm.options.noop import off, only, switches, values

NOOP_SERVER_OPTIONS = {
    **values("health and metrics are never in the access log", "disable-access-log-for-endpoints"),
    **switches("the engine always has a process of its own", "disable-frontend-multiprocessing"),
    **switches("there is no access log without --access-log", "disable-uvicorn-access-log"),
    **switches("tools are on wherever it is known how the model calls them", "enable-auto-tool-choice"),
    **switches("outputs are not logged", "enable-log-deltas", "enable-log-outputs"),
    **switches("/docs and /openapi.json need no network", "enable-offline-docs"),
    **switches("usage always tells cached prompt tokens", "enable-prompt-tokens-details"),
    **switches("/load always tells the load", "enable-server-load-tracking"),
    **switches("certificates are always read again when their files change", "enable-ssl-refresh"),
    **switches("an internal error is always logged with its stack", "log-error-stack"),
    **values("--log-level is for all of the server", "uvicorn-log-level"),
    **switches("reasoning is on wherever it is known how the model writes it", "enable-reasoning"),
    **switches("models read text only", "trust-request-mm-kwargs"),
    **values("tools with strict are always followed", "tool-strict-level"),
    **switches("the routes of token ids are always there: docs/token_ids.md", "enable-scale-out"),
    **switches("there is one server process with its engine", "enable-flash-late-interaction"),
    **values("there is one server process with its engine", "grpc-port", "data-parallel-supervisor-port",
             "dp-supervisor-probe-interval-s", "dp-supervisor-probe-timeout-s",
             "dp-supervisor-probe-failure-threshold"),
    **values("thinking that is switched off is switched off for the template", "anthropic-disabled-thinking-effort"),
    **switches("Cohere's formats are known by their templates", "cohere-is-reasoning-model"),
    **values("Cohere's formats are known by their templates", "cohere-format"),
    **only((), "the server runs no tools", "tool-server"),
    **only(([], ()), "adapters (LoRA) are not supported; serve a checkpoint into which they are merged",
           "lora-modules"),
    **off("not supported; the server speaks HTTP, text and token ids", "grpc", "tokens-only"),
}  # fmt: skip
