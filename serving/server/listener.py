"""The socket that the server listens on, and what makes it speak TLS: all that can fail before a model is loaded."""

import asyncio
import errno
import socket
import ssl
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Self

from uvicorn.config import create_ssl_context

from jaxllm.errors import ConfigError
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.takeover import Predecessor


class Listener:
    """A bound socket, TCP or Unix, with its TLS context. As a context manager it closes at the end.

    It does not listen yet: until the server answers, connections are rejected, which is what probes expect. Raises
    `ConfigError` for an address that is in use or not of this machine, and for certificates that cannot be read.
    """

    def __init__(self, options: ServerOptions, inherited: socket.socket | None = None) -> None:
        """`inherited`: a socket that another process has bound, whose file stays when this one ends.

        With `takeover`, the socket is that of the server at this address, which `take_over` then ends.
        """
        self._options = options
        self.ssl_context = _ssl_context(options)
        self._written = self._modified_time()
        self._path = None if options.uds is None else Path(options.uds)
        self._predecessor = Predecessor.find(options) if options.takeover and inherited is None else None
        if self._predecessor is not None:
            inherited = self._predecessor.socket
        self._inherited = inherited is not None
        if inherited is not None:
            self.socket = inherited
        else:
            self.socket = _bind_tcp(options.host, options.port) if self._path is None else _bind_unix(self._path)

    @property
    def port(self) -> int | None:
        """The real port, also where 0 was asked for; None for a Unix socket."""
        return None if self._path is not None else int(self.socket.getsockname()[1])

    @property
    def is_open(self) -> bool:
        """Whether other machines may reach it."""
        return self._path is None and not ip_address(self.socket.getsockname()[0].partition("%")[0]).is_loopback

    def urls(self, root_path: str | None = None) -> list[str]:
        """Where clients on this machine find the server."""
        if self._path is not None:
            return [f"unix:{self._path}"]
        host = str(self.socket.getsockname()[0])
        shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        return [f"{'http' if self.ssl_context is None else 'https'}://{shown}:{self.port}{root_path or ''}"]

    def reload_certificate(self) -> bool:
        """Read certificate and key again if their files have changed; new connections get them. Whether it did.

        Raises `ConfigError` when they cannot be read, as while somebody writes them; the old ones stay in use then.
        """
        if self.ssl_context is None or self._modified_time() == self._written:
            return False
        written = self._modified_time()
        # Tried apart first: a certificate without its key must not replace a pair that works.
        _ssl_context(self._options)
        assert self._options.ssl_certfile is not None
        self.ssl_context.load_cert_chain(self._options.ssl_certfile, self._options.ssl_keyfile)
        self._written = written
        return True

    def _modified_time(self) -> list[int]:
        names = filter(None, (self._options.ssl_certfile, self._options.ssl_keyfile))
        return [Path(name).stat().st_mtime_ns for name in names if Path(name).exists()]

    async def take_over(self) -> None:
        """Connections are taken here: let the server leave that served this address before, if there is one."""
        if self._predecessor is not None:
            await asyncio.to_thread(self._predecessor.relieve)
            self._predecessor.close()
            # From now on its file is ours.
            self._inherited = False

    def hand_over(self) -> None:
        """Another server takes the connections of this socket: its file stays."""
        self._inherited = True

    def close(self) -> None:
        """Close the socket and remove its file."""
        if self._predecessor is not None:
            self._predecessor.close()
        self.socket.close()
        if self._path is not None and not self._inherited:
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bind_tcp(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"host={host!r}: {error.strerror}") from None
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it, a restarted server would wait for the last connections of the old one to be forgotten.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Token after token in packets of their own: none may wait for the last one's acknowledgement.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.bind(address)
        found.set_inheritable(False)
    except OSError as error:
        found.close()
        raise _bind_error(
            f"{host}:{port}", error, "another process is listening there; choose another --port"
        ) from None
    return found


def _bind_unix(path: Path) -> socket.socket:
    if path.is_socket() and not _answers(path):
        # Left by a server that was killed.
        path.unlink()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(str(path))
    except OSError as error:
        found.close()
        raise _bind_error(f"uds={str(path)!r}", error, "the path already exists; choose another --uds") from None
    return found


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _bind_error(where: str, error: OSError, in_use: str) -> ConfigError:
    reason = in_use if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ConfigError(f"cannot listen on {where}: {reason}")


def _ssl_context(options: ServerOptions) -> ssl.SSLContext | None:
    if options.ssl_certfile is None:
        return None
    try:
        return create_ssl_context(
            certfile=options.ssl_certfile,
            keyfile=options.ssl_keyfile,
            # Asked for on the terminal by OpenSSL, if the key has one.
            password=None,
            ssl_version=ssl.PROTOCOL_TLS_SERVER,
            cert_reqs=options.ssl_cert_reqs,
            ca_certs=options.ssl_ca_certs,
            ciphers=options.ssl_ciphers or "TLSv1",
        )
    except OSError as error:
        # ssl.SSLError is one too; neither says which file it was.
        files = ", ".join(filter(None, (options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs)))
        raise ConfigError(f"TLS with {files}: {error.strerror or error}") from None
