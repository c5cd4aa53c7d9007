"""Downloading an adapter from the Hub of Hugging Face, or finding it in the Hub's cache."""

from pathlib import Path

from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.file_names import CONFIG_FILE, WEIGHT_FILES
from jaxllm.models.checkpoint.hub import download_problem, hub_client


def download_adapter(
    repository: str, folder: str = "", *, download_dir: str | None = None, token: str | None = None
) -> Path | None:
    """The folder of a repository in the Hub's cache, with the files of the adapter in `folder`.

    None where the Hub has no such repository. With `HF_HUB_OFFLINE=1` only the cache counts. Raises `AdapterError`
    where the Hub cannot be asked.
    """
    client = hub_client()
    errors, is_offline = client.errors, bool(client.constants.HF_HUB_OFFLINE)
    start = f"{folder}/" if folder else ""
    try:
        return Path(
            client.snapshot_download(
                repository,
                cache_dir=download_dir,
                token=token,
                allow_patterns=[start + name for name in (CONFIG_FILE, *WEIGHT_FILES)],
                local_files_only=is_offline,
            )
        )
    except errors.GatedRepoError as error:
        raise AdapterError(download_problem(error)) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return None
    except errors.LocalEntryNotFoundError as error:
        if is_offline:
            return None
        raise AdapterError(download_problem(error)) from None
    except Exception as error:
        raise AdapterError(download_problem(error)) from error
