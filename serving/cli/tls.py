"""How the clients of the command line know a server by its certificate."""

import argparse
import os
import ssl
import sys

from jaxllm.errors import ConfigError, EngineError


def add_tls_flags(group: argparse._ArgumentGroup) -> None:
    """Declare whose certificates are trusted."""
    group.add_argument(
        "--cacert",
        metavar="FILE",
        help="File with the CA certificate, or the server's own certificate (or $SSL_CERT_FILE).",
    )
    group.add_argument(
        "--insecure", action="store_true", help="Do not verify the server's certificate; for tests only."
    )


def tls_context(cacert: str | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """What certificates are checked with: those of `cacert`, else of the environment, else the usual authorities.

    Raises `ConfigError` for a file that cannot be read.
    """
    if insecure:
        if cacert is not None:
            raise ConfigError("--cacert and --insecure cannot be combined")
        sys.stderr.write(
            "jaxllm: --insecure: the server's identity is not verified; an attacker could read and change "
            "everything, including the API key\n"
        )
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    file = cacert or os.environ.get("SSL_CERT_FILE") or None
    folder = None if cacert else os.environ.get("SSL_CERT_DIR") or None
    if file is None and folder is None:
        import certifi

        file = certifi.where()
    try:
        return ssl.create_default_context(cafile=file, capath=folder)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot read certificates from {file or folder!r}: {error}") from None


def tls_error(url: str, error: BaseException) -> EngineError | None:
    """Advice about certificates for a failed connection; None where it has none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return EngineError(
            f"the certificate of {url} is not trusted: {cause.verify_message}. Give its CA certificate with --cacert "
            "FILE or in SSL_CERT_FILE, or skip verification with --insecure"
        )
    if cause is not None:
        reason = cause.reason or str(cause)
        return EngineError(f"{url} does not speak TLS ({reason}): should the address begin with http://?")
    return None
