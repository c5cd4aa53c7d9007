"""A small client of OpenAI's API for the terminal: one-line errors, streams, nothing else."""

import argparse
import ipaddress
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import httpx
import msgspec
from httpx_sse import EventSource, SSEError

from jaxllm.errors import ConfigError, EngineError, JaxLLMError, RequestError, nearest
from jaxllm.serving.cli.sampling_flags import add_sampling_flags, explicit_sampling
from jaxllm.serving.cli.tls import add_tls_flags, tls_context, tls_error

DEFAULT_URL = "http://localhost:8000/v1"
_NOT_FOR_CLIENTS = frozenset({"n", "best_of", "logprobs", "prompt_logprobs", "logprob_token_ids"})


def add_client_flags(parser: argparse.ArgumentParser, defaults: Mapping[str, Any]) -> None:
    """Declare where the server is, and how it shall sample; `defaults` are those of sampling."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url", default=DEFAULT_URL, help="Address of the server, or unix:PATH of its socket (default: %(default)s)."
    )
    group.add_argument(
        "--api-key", metavar="TEXT", help="API key of the server (or $JAXLLM_API_KEY, or $OPENAI_API_KEY)."
    )
    group.add_argument("--model-name", metavar="TEXT", help="Name of the server's model to use (default: the first).")
    add_tls_flags(group)
    add_sampling_flags(parser, defaults, without=_NOT_FOR_CLIENTS)


def client_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters given on the command line."""
    return explicit_sampling(args, without=_NOT_FOR_CLIENTS)


class ApiClient:
    """Talks to one server. A context manager.

    Raises `EngineError` when the server does not answer or fails, `RequestError` when it rejects, and `ConfigError`
    when it wants another key.
    """

    def __init__(
        self, url: str, api_key: str | None = None, *, cacert: str | None = None, insecure: bool = False
    ) -> None:
        """`cacert` and `insecure` are as in `tls_context`. Raises `ConfigError`."""
        key = api_key or os.environ.get("JAXLLM_API_KEY") or os.environ.get("OPENAI_API_KEY")
        self.url, transport = _address(url)
        # A local server too may have a certificate of one's own.
        self.tls_context = tls_context(cacert, insecure=insecure) if self.url.startswith("https:") else None
        """The authorities that the server's certificate is checked with, where it speaks TLS."""
        self._client = httpx.Client(
            verify=True if self.tls_context is None else self.tls_context,
            base_url=self.url,
            transport=transport,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            # An answer may take its time; a server that is there takes connections at once.
            timeout=httpx.Timeout(None, connect=10.0),
            # A proxy is for the world outside.
            trust_env=transport is None and not _is_local(httpx.URL(self.url).host),
        )

    @classmethod
    def from_flags(cls, args: argparse.Namespace) -> Self:
        """The client that the flags of `add_client_flags` describe."""
        return cls(args.url, args.api_key, cacert=args.cacert, insecure=args.insecure)

    def find_model(self, wanted: str | None = None) -> tuple[str, str]:
        """The name of a model, `wanted` or else the server's first, and the folder or hub id it was made from."""
        with _errors(self.url):
            response = self._client.get("models")
            self._check(response)
            models = {str(model["id"]): model for model in response.json()["data"]}
        if not models:
            raise EngineError(f"the server at {self.url} has no models")
        name = next(iter(models)) if wanted is None else wanted
        if name not in models:
            raise RequestError(f"the server at {self.url} has no model {name!r}{nearest(name, models)}", "model")
        return name, str(models[name].get("root") or name)

    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the chunks of a streamed answer. Closing the iterator ends the request."""
        whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with _errors(self.url), self._client.stream("POST", path, json=whole) as response:
            self._check(response)
            for event in EventSource(response).iter_sse():
                if event.data == "[DONE]":
                    return
                chunk = msgspec.json.decode(event.data)
                if "error" in chunk:
                    raise EngineError(_message(chunk, "the server failed"))
                yield chunk

    def live_events(self) -> Generator[dict[str, Any]]:
        """Yield what the server's live view reads, until the server ends. Raises `RequestError` where there is none."""
        url = f"{self.url.removesuffix('v1/')}ui/events"
        # Events come twice a second: silence means that the server is gone.
        timeout = httpx.Timeout(10.0)
        with _errors(self.url), self._client.stream("GET", url, timeout=timeout) as response:
            if response.status_code == httpx.codes.NOT_FOUND:
                raise RequestError(f"the server at {self.url} has no live view: is it jaxllm, without --no-ui?", "url")
            self._check(response)
            for event in EventSource(response).iter_sse():
                yield msgspec.json.decode(event.data)

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        response.read()
        try:
            message = _message(response.json(), response.reason_phrase)
        except ValueError:
            message = response.reason_phrase
        status = response.status_code
        if status == httpx.codes.UNAUTHORIZED:
            raise ConfigError(f"the server at {self.url} rejects the API key (--api-key): {message}")
        kind = RequestError if response.is_client_error else EngineError
        raise kind(f"the server returned {status}: {message}")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """Turn what httpx raises into errors of one line."""
    try:
        yield
    except JaxLLMError:
        raise
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        about_tls = tls_error(url, error)
        if about_tls is not None:
            raise about_tls from None
        raise EngineError(f"no server is listening at {url}: start one with `jaxllm serve`, or pass --url") from None
    except (SSEError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{url} is not a server of OpenAI's API") from error
    except httpx.HTTPError as error:
        hint = "; does the server expect TLS (https://)?" if url.startswith("http:") else ""
        raise EngineError(f"the connection to {url} was lost: {error or type(error).__name__}{hint}") from None


def _address(url: str) -> tuple[str, httpx.BaseTransport | None]:
    """The base URL, and the transport where it is a socket's path. Raises `ConfigError`."""
    if url.startswith("unix:"):
        return "http://localhost/v1/", httpx.HTTPTransport(uds=url.removeprefix("unix:"))
    text = url if "://" in url else f"http://{url}"
    try:
        parsed = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigError(f"url={url!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"url={url!r}: expected a URL such as {DEFAULT_URL}")
    if parsed.path in ("", "/"):
        parsed = parsed.copy_with(path="/v1")
    return str(parsed).rstrip("/") + "/", None


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _message(answer: Any, fallback: str) -> str:
    """The message of an error in OpenAI's form."""
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or fallback)
