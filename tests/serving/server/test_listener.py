import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.listener import Listener


def write_certificate(folder: Path, name: str) -> tuple[str, str]:
    key, certificate = str(folder / f"{name}-key.pem"), str(folder / f"{name}.pem")
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command = ["openssl", "req", *kind, "-keyout", key, "-out", certificate, "-subj", f"/CN={name}"]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def subject(listener: Listener) -> bytes:
    """The certificate that a client is shown."""
    assert listener.ssl_context is not None
    ours, theirs = socket.socketpair()

    def answer() -> None:
        assert listener.ssl_context is not None
        with listener.ssl_context.wrap_socket(ours, server_side=True) as side:
            side.recv(1)

    server = threading.Thread(target=answer)
    server.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(theirs) as client:
        found = client.getpeercert(binary_form=True)
        client.send(b"x")
    server.join()
    assert found is not None
    return found


def test_port_0_and_its_urls() -> None:
    with Listener(ServerOptions(host="127.0.0.1", port=0)) as listener:
        assert listener.port
        assert listener.urls() == [f"http://127.0.0.1:{listener.port}"]
        assert listener.urls("/llm") == [f"http://127.0.0.1:{listener.port}/llm"]
        with socket.socket() as probe:
            # Not before the server can answer.
            assert probe.connect_ex(("127.0.0.1", listener.port)) != 0
    with Listener(ServerOptions(host="0.0.0.0", port=0)) as listener:
        assert listener.urls() == [f"http://localhost:{listener.port}"]


def test_ipv6() -> None:
    with Listener(ServerOptions(host="::1", port=0)) as listener:
        assert listener.urls() == [f"http://[::1]:{listener.port}"]


def test_a_unix_socket_of_a_living_server_is_not_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    options = ServerOptions(uds=path)
    with Listener(options) as living:
        living.socket.listen()
        with pytest.raises(ConfigError, match="the path already exists; choose another --uds"):
            Listener(options)
        assert Path(path).is_socket()
    assert not Path(path).exists()


def test_a_file_in_the_way_of_a_unix_socket_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("data")
    with pytest.raises(ConfigError, match="the path already exists"):
        Listener(ServerOptions(uds=str(file)))
    assert file.read_text() == "data"


def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "old")
    with Listener(ServerOptions(host="127.0.0.1", port=0, ssl_certfile=certificate, ssl_keyfile=key)) as listener:
        assert listener.urls()[0].startswith("https://")
        old = subject(listener)
        assert not listener.reload_certificate()
        new_certificate, new_key = write_certificate(tmp_path, "new")
        Path(new_certificate).replace(certificate)
        # Half of a pair.
        with pytest.raises(ConfigError, match="TLS with"):
            listener.reload_certificate()
        assert subject(listener) == old
        Path(new_key).replace(key)
        assert listener.reload_certificate()
        assert subject(listener) != old
        assert not listener.reload_certificate()


def test_a_certificate_that_is_gone_for_a_moment(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "only")
    with Listener(ServerOptions(host="127.0.0.1", port=0, ssl_certfile=certificate, ssl_keyfile=key)) as listener:
        Path(certificate).rename(certificate + ".away")
        with pytest.raises(ConfigError, match="No such file"):
            listener.reload_certificate()
        Path(certificate + ".away").rename(certificate)
        assert not listener.reload_certificate()


def test_a_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    certificate, _ = write_certificate(tmp_path, "one")
    _, key = write_certificate(tmp_path, "other")
    with pytest.raises(ConfigError, match=r"TLS with .*one.pem"):
        Listener(ServerOptions(host="127.0.0.1", port=0, ssl_certfile=certificate, ssl_keyfile=key))
