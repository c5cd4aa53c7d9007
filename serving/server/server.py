"""The life of `jaxllm serve`: bind, load, answer, and end well when asked to."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.config.progress import Progress, silent
from jaxllm.errors import ConfigError
from jaxllm.serving.http.middleware.custom import load_middleware, load_router
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.launch import launch_with_devices
from jaxllm.serving.ipc.client.process import EngineProcess
from jaxllm.serving.ipc.remote.host import run_host
from jaxllm.serving.ipc.remote.layout import arranged, launches
from jaxllm.serving.ipc.remote.security import keys_of
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.openai.files.store import lock_folder
from jaxllm.serving.options.origins import NO_ORIGINS, Origins
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.reply.registry import ReplyFormats
from jaxllm.serving.server.event_loop import run_on_fast_loop
from jaxllm.serving.server.listener import Listener
from jaxllm.serving.server.signals import Signals, before, cancel
from jaxllm.serving.server.workers.context import WorkerContext
from jaxllm.serving.telemetry.logs import configure_logging
from jaxllm.serving.tenancy.access import Access

_log = logging.getLogger(__name__)


def run_server(
    config: EngineConfig,
    options: ServerOptions,
    progress: Progress = silent,
    launch: Launch = EngineProcess,
    origins: Origins = NO_ORIGINS,
) -> int:
    """`serve` on an event loop of its own, the fastest there is; without HTTP for a server elsewhere if `headless`."""
    config = arranged(config, headless=options.headless)
    if options.headless:
        configure_logging(options.log_level, json_lines=options.log_format == "json")
        keys = keys_of(options, config.parallel.data_parallel_address)
        return run_host(config, keys, partial(launch_with_devices, launch, config))
    return run_on_fast_loop(serve(config, options, progress=progress, launch=launch, origins=origins))


async def serve(
    config: EngineConfig,
    options: ServerOptions,
    *,
    progress: Progress = silent,
    launch: Launch = EngineProcess,
    origins: Origins = NO_ORIGINS,
) -> int:
    """Serve until SIGTERM or Ctrl-C; the result is the exit code. The banner tells `origins`.

    0 when ended by one signal, 128 + its number when a second one cut that short. Raises `ConfigError`,
    `CapacityError` or `EngineError` when it cannot start, and `EngineError` when the engine ends and may not be
    restarted, or ends while it shuts down. The address is checked before the model is loaded.
    """
    configure_logging(options.log_level, json_lines=options.log_format == "json")
    if not config.structured.structured_outputs_canary:
        raise ConfigError(
            "structured_outputs_canary=False: not allowed in a server, because a single grammar could crash it; omit it"
        )
    for path in options.middleware:
        # The application loads it again; here it fails before the model is loaded.
        load_middleware(path)
    for path in options.include_router:
        load_router(path)
    # Likewise: a wrong file of keys, and a folder that cannot be used.
    Access.of(options)
    for folder, option in ((options.store_dir, "store_dir"), (options.files_dir, "files_dir")):
        if folder is not None:
            lock_folder(Path(folder), option).close()
    ReplyFormats.of(options, "")
    with Listener(options) as listener, launches(config, options, launch) as launch_of:
        if options.api_server_count == 1:
            return await serve_at(listener, config, options, progress=progress, launch_of=launch_of, origins=origins)
        from jaxllm.serving.server.workers.supervisor import supervise

        with Signals() as signals:
            return await supervise(
                listener, signals, config, options, progress=progress, launch_of=launch_of, origins=origins
            )


async def serve_at(
    listener: Listener,
    config: EngineConfig,
    options: ServerOptions,
    *,
    progress: Progress = silent,
    launch_of: Callable[[int], Launch] | None = None,
    worker: WorkerContext | None = None,
    origins: Origins = NO_ORIGINS,
) -> int:
    """`serve` with this process alone answering, at `listener`; `worker`: as one of several."""
    json_lines = options.log_format == "json"
    configure_logging(options.log_level, json_lines=json_lines)
    started = time.monotonic()
    with Signals() as signals:
        loading = asyncio.ensure_future(
            AsyncLLM.start(
                config,
                max_queued_requests=options.max_queued_requests,
                max_in_flight=options.max_num_queued_reqs,
                max_queued_tokens=options.max_num_queued_tokens,
                step_timeout=options.step_timeout,
                progress=progress,
                chat_template=options.chat_template,
                skip_tokenizer_init=options.skip_tokenizer_init,
                log_level=options.log_level,
                json_logs=json_lines,
                launch_of=launch_of if worker is None else worker.launch_of,
                is_guest=worker is not None,
                scale=None if worker is None else worker.scale,
                # Among others, this process does not start the engine: it is told of the next one.
                max_restarts=options.max_restarts if worker is None else None,
                restart_window=options.restart_window,
                max_request_crashes=options.max_request_crashes,
            )
        )
        # Most of what answers needs is imported while the engine loads.
        answering = asyncio.ensure_future(asyncio.to_thread(_import_answer))
        if not await before(signals.first, loading):
            _log.info("received a signal to exit before the model was loaded")
            await cancel(loading)
            return signals.exit_code
        llm = loading.result()
        if worker is not None:
            worker.follow(llm)
        try:
            answer = await answering
            return await answer(llm, options, listener, signals, worker, started, origins)
        finally:
            await llm.shutdown()


def _import_answer() -> Callable[..., Coroutine[Any, Any, int]]:
    from jaxllm.serving.server.answering import answer

    return answer
