"""Certificates for servers that speak TLS, made by OpenSSL."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> tuple[str, str]:
    """The files of a certificate for localhost, and of its key, in a folder that is made if need be."""
    folder.mkdir(exist_ok=True)
    key, certificate = str(folder / "key.pem"), str(folder / "certificate.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", key, "-out", certificate]
    subprocess.run(["openssl", "req", *kind, *files, *subject], check=True, capture_output=True)
    return certificate, key
