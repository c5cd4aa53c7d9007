"""Which engines cannot have copies of their pages on the host."""

from pathlib import Path

from jaxllm.errors import ConfigError
from jaxllm.executor.resolved import ResolvedConfig


def check_offloading(resolved: ResolvedConfig, processes: int) -> None:
    """Raise `ConfigError` where copies of pages are wanted and not supported, or their folder cannot be used."""
    options = resolved.config.cache
    if options.kv_offloading_path is not None:
        _check_folder(resolved, options.kv_offloading_path)
    if not options.copies_pages:
        return
    name = "kv_offloading_size" if options.kv_offloading_size else "kv_transfer_config"
    problem = _problem(resolved, processes)
    if problem is not None:
        raise ConfigError(f"{name}: {problem}")
    if options.kv_transfer is not None:
        _check_transfer(resolved)


def _check_transfer(resolved: ResolvedConfig) -> None:
    options = resolved.config.cache
    if options.kv_offloading_size and options.kv_transfer is not None and options.kv_transfer.buffer_bytes is not None:
        raise ConfigError(
            "kv_transfer_config: kv_buffer_size and kv_offloading_size are the same memory of the host; give one"
        )
    if not options.enable_prefix_caching:
        raise ConfigError(
            "kv_transfer_config: pages are found as prefixes; omit --no-enable-prefix-caching, or kv_transfer_config"
        )
    if resolved.config.lora.merge_lora is not None:
        raise ConfigError("kv_transfer_config: not supported with merge_lora; merge the checkpoint, or omit it")


def offloading_folder(given: str) -> Path:
    """The folder for copies in files."""
    return Path(given).expanduser().absolute()


def _check_folder(resolved: ResolvedConfig, given: str) -> None:
    """Make the folder for copies in files, unless it is there."""
    if not resolved.config.cache.kv_offloading_size:
        raise ConfigError(
            "kv_offloading_path: pages pass through the host's memory on their way to files; "
            "set kv_offloading_size (GiB) as well"
        )
    if resolved.config.lora.merge_lora is not None:
        raise ConfigError("kv_offloading_path: not supported with merge_lora; merge the checkpoint, or omit it")
    try:
        folder = offloading_folder(given)
        # Only its owner sees what is in it; one that was there before stays as it is.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"kv_offloading_path={given!r}: cannot be made a folder: {reason}") from error


def _problem(resolved: ResolvedConfig, processes: int) -> str | None:
    if processes > 1:
        return "not supported by engines on several hosts; use tensor_parallel_size on one host"
    if resolved.data_shards > 1:
        return "not supported by data shards of one mesh; use one engine for each of them"
    if resolved.drafter is not None:
        return "not supported with drafts from layers on the device; use ngram drafts, or omit speculative_config"
    if resolved.model.has_cross_attention:
        return f"not supported by {resolved.model.architecture}, whose prompts are short; omit it"
    if not resolved.cache_plan.depth:
        return f"not supported by {resolved.model.architecture}, which has no attention; omit it"
    return None
