"""`MediaFetcher`: bytes of an image or video from its URL, with every step bounded.

HTTP is httpx's: it is a dependency already, it lets a request name the address to connect to apart from the host that
certificates are checked for, and it leaves redirects to the caller.
"""

import asyncio
import binascii
import ssl
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote, urlsplit

import httpx

from jaxllm.errors import quoted, shortened
from jaxllm.serving.media.addresses import AddressPolicy, Resolver, resolve
from jaxllm.serving.media.blocking import run_now
from jaxllm.serving.media.errors import MediaError, MediaFetchError, MediaTooLargeError
from jaxllm.serving.media.local_files import LocalFolder
from jaxllm.serving.options.media import MediaOptions

MOST_REDIRECTS: Final = 5
MOST_URL: Final = 8192
"""Characters of a URL that is not itself the image."""
MOST_ADDRESSES: Final = 3
"""Addresses of a host that are tried."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PORTS: Final = {"http": 80, "https": 443}
_HEADERS: Final = {"Accept-Encoding": "identity", "User-Agent": "jaxllm"}


class MediaFetcher:
    """Fetches images, or videos, by http, https, data and file URLs. Immutable; for any thread and event loop."""

    def __init__(
        self,
        options: MediaOptions,
        *,
        resolver: Resolver = resolve,
        context: ssl.SSLContext | None = None,
        subject: str = "image",
    ) -> None:
        """`context` says which certificates are trusted; default: httpx's. Raises `ConfigError` for bad options.

        `subject` is what is fetched, in errors and in the names of options.
        """
        self._subject, self._one = subject, f"{'an' if subject[0] in 'aeiou' else 'a'} {subject}"
        self._most: int = getattr(options, f"max_{subject}_bytes")
        self._seconds: float = getattr(options, f"{subject}_fetch_timeout")
        self._domains = frozenset(each.lower().rstrip(".") for each in options.allowed_media_domains)
        self._policy = AddressPolicy.read(options.allowed_media_networks)
        folder = options.allowed_local_media_path
        self._folder = LocalFolder(folder) if folder is not None else None
        self._resolver = resolver
        # Loading certificates takes longer than most fetches.
        self._context = context or httpx.create_ssl_context(trust_env=False)

    async def fetch(self, url: str) -> bytes:
        """The bytes that a URL names. Raises `MediaFetchError` and `MediaTooLargeError`, within the timeout."""
        try:
            return await self._fetch(url)
        except MediaError as error:
            error.parameter = f"{self._subject}_url"
            raise

    async def _fetch(self, url: str) -> bytes:
        scheme = url[:8].partition(":")[0].lower()
        if scheme == "data":
            # Long ones take milliseconds, for which others would wait.
            return await asyncio.to_thread(read_data_url, url, self._most, self._subject)
        if len(url) > MOST_URL:
            raise MediaFetchError(
                f"the URL of the {self._subject} has {len(url)} characters; at most {MOST_URL} are allowed"
            )
        if scheme == "file":
            return await asyncio.to_thread(self._read_file, url)
        if scheme not in _PORTS:
            raise MediaFetchError(f"{quoted(url)} is no URL of {self._one}: use http, https or data")
        try:
            async with asyncio.timeout(self._seconds):
                return await self._follow(url)
        except TimeoutError:
            raise MediaFetchError(f"fetching the {self._subject} took more than {self._seconds:g} s") from None

    def fetch_now(self, urls: Iterable[str]) -> list[bytes]:
        """Fetch several at once, from a thread that may have an event loop of its own. Raises the first error."""

        async def every() -> list[bytes]:
            return await asyncio.gather(*map(self.fetch, urls))

        return run_now(every)

    def _read_file(self, url: str) -> bytes:
        if self._folder is None:
            raise MediaFetchError("file:// URLs are not allowed on this server; see --allowed-local-media-path")
        parts = urlsplit(url)
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or "\0" in path:
            raise MediaFetchError(f"{quoted(url)} is no URL of a file: expected file:///path")
        return self._folder.read(path, self._most)

    async def _follow(self, url: str) -> bytes:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=0)
        # Neither proxies nor passwords of the environment; and no connection is used for two hosts.
        async with httpx.AsyncClient(
            verify=self._context, trust_env=False, follow_redirects=False, timeout=None, limits=limits
        ) as client:
            target = self._checked(url)
            for _ in range(MOST_REDIRECTS + 1):
                found = await self._get(client, target)
                if isinstance(found, bytes):
                    return found
                target = self._checked(found)
        raise MediaFetchError(f"the URL of the {self._subject} redirects more than {MOST_REDIRECTS} times")

    def _checked(self, url: str | httpx.URL) -> httpx.URL:
        try:
            found = httpx.URL(url)
        except (httpx.InvalidURL, ValueError, TypeError) as error:
            raise MediaFetchError(f"the URL of the {self._subject} is malformed: {shortened(error)}") from None
        if found.scheme not in _PORTS or not found.host or len(str(found)) > MOST_URL:
            raise MediaFetchError(f"{quoted(str(found))} is no URL of {self._one}: use http or https")
        if found.userinfo:
            raise MediaFetchError(f"the URL of the {self._subject} must not contain a user name or password")
        host = found.raw_host.decode("ascii").lower().rstrip(".")
        if self._domains and host not in self._domains:
            allowed = ", ".join(sorted(self._domains))
            raise MediaFetchError(
                f"{self._subject}s are not fetched from {quoted(host)}; allowed: {shortened(allowed)}"
            )
        return found

    async def _get(self, client: httpx.AsyncClient, url: httpx.URL) -> bytes | httpx.URL:
        """The body, or where it is."""
        host, port = url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]
        addresses = await self._policy.addresses(host, port, self._resolver)
        for number, address in enumerate(addresses[:MOST_ADDRESSES], 1):
            request = client.build_request(
                "GET",
                url.copy_with(host=address, fragment=None),
                headers={**_HEADERS, "Accept": f"{self._subject}/*, */*;q=0.5", "Host": url.netloc.decode("ascii")},
                extensions={"sni_hostname": host},
            )
            try:
                response = await client.send(request, stream=True)
            except httpx.ConnectError as error:
                if number == min(len(addresses), MOST_ADDRESSES):
                    raise self._failed(host, error) from None
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                # httpx reads the header Location, too.
                raise self._failed(host, error) from None
            try:
                return await self._read(response, url)
            except httpx.HTTPError as error:
                raise self._failed(host, error) from None
            finally:
                await response.aclose()
        raise AssertionError("a host has an address")

    async def _read(self, response: httpx.Response, url: httpx.URL) -> bytes | httpx.URL:
        location = response.headers.get("Location")
        if response.status_code in _REDIRECTS and location is not None:
            if len(location) > MOST_URL:
                raise MediaFetchError(f"the URL of the {self._subject} redirects to a URL that is too long")
            try:
                return url.join(location)
            except (httpx.InvalidURL, ValueError) as error:
                raise MediaFetchError(f"the URL of the {self._subject} redirects nowhere: {shortened(error)}") from None
        if response.status_code != 200:
            raise MediaFetchError(f"the server of the {self._subject} answers with status {response.status_code}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise MediaFetchError(f"the server of the {self._subject} compresses it, although it was asked not to")
        claimed = response.headers.get("Content-Length", "")
        data = bytearray()
        too_large = MediaTooLargeError(f"the {self._subject} has more than {self._most} bytes")
        if claimed.isdecimal() and int(claimed[:20]) > self._most:
            raise too_large
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > self._most:
                raise too_large
        return bytes(data)

    def _failed(self, host: str, error: httpx.HTTPError | httpx.InvalidURL) -> MediaFetchError:
        kind = "connecting" if isinstance(error, httpx.ConnectError) else "fetching"
        reason = shortened(error) if "CERTIFICATE" in str(error).upper() else type(error).__name__
        return MediaFetchError(f"{kind} the {self._subject} from {host!r} failed: {reason}")


def read_data_url(url: str, most: int, subject: str = "image") -> bytes:
    """The bytes in a data URL, in base64 as RFC 4648 writes it: no spaces, and padded.

    Raises `MediaFetchError` for another form, and `MediaTooLargeError` before anything is decoded.
    """
    head, comma, text = url[5:].partition(",")
    if not comma or head.rpartition(";")[2].strip().lower() != "base64":
        raise MediaFetchError("a data URL must have the form data:image/png;base64,DATA")
    if len(text) > (most + 2) // 3 * 4:
        raise MediaTooLargeError(f"the {subject} has more than {most} bytes")
    if text.endswith("==="):
        # Python takes any amount of padding.
        raise MediaFetchError("the data URL is not valid base64: too much padding")
    try:
        data = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError as error:
        raise MediaFetchError(f"the data URL is not valid base64: {shortened(error)}") from None
    if len(data) > most:
        raise MediaTooLargeError(f"the {subject} has more than {most} bytes")
    return data
