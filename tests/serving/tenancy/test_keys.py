"""Files of keys, and a server that follows one."""

import hashlib
import json
import signal
import time
from pathlib import Path

import httpx
import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.tenancy.access import Access
from jaxllm.serving.tenancy.quotas import Quota
from tests.serving.server_process import SMALL, running

BODY = {"model": "demo", "prompt": "Once", "max_tokens": 4}


def digest(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = Access(["third"], write(tmp_path / "keys", f"# ours\nfirst\n\n{digest('second')}\n"))
    owners = [access.find(key.encode()) for key in ("first", "second", "third")]
    assert len({key.owner.name for key in owners if key is not None}) == 3
    assert access.find(b"# ours") is None
    assert access.find(digest("second").encode()) is None
    assert not caplog.records
    (tmp_path / "keys").chmod(0o644)
    Access([], str(tmp_path / "keys"))
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize("name", ["keys.yaml", "keys.json"])
def test_clients(tmp_path: Path, name: str) -> None:
    client = {"name": "ada", "keys": ["x", digest("y")], "weight": 3, "tokens_per_minute": 90}
    text = json.dumps({"clients": [client]})
    access = Access([], write(tmp_path / name, text), num_servers=3)
    one, other = access.find(b"x"), access.find(b"y")
    assert one is not None
    assert other is not None
    assert one.owner == other.owner
    assert one.owner.weight == 3
    account = access.account(one.owner)
    assert account is not None
    assert account.quota == Quota(tokens_per_minute=30)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("keys", "\n# none\n", "no key"),
        ("keys", "sha256:secret", "hexadecimal"),
        ("keys.yaml", "clients: []", "length"),
        ("keys.yaml", "clients: [{name: a, keys: [secret], wieght: 2}]", "wieght"),
        ("keys.yaml", "clients: [{name: a, keys: [secret]}, {name: a, keys: [y]}]", "two clients"),
        ("keys.yaml", "clients: [{name: a, keys: [secret]}, {name: b, keys: [secret]}]", "twice"),
        ("keys.yaml", "clients: [{name: a, keys: [secret], weight: 0}]", "weight"),
        ("keys.yaml", "secret: [", "not valid YAML"),
        ("absent", None, "No such file"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        write(tmp_path / name, text)
    with pytest.raises(ConfigError, match=message) as caught:
        Access([], str(tmp_path / name))
    assert "secret" not in str(caught.value)


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    access = Access([], write(path, "first"))
    assert not access.reload()
    write(path, "second\n")
    assert access.reload()
    assert (access.find(b"first"), access.find(b"second") is None) == (None, False)
    write(path, "sha256:nothing")
    with pytest.raises(ConfigError):
        access.reload()
    assert not access.reload(), "said once"
    assert access.find(b"second") is not None
    path.unlink()
    with pytest.raises(ConfigError, match="no longer exists"):
        access.reload()
    assert access.find(b"second") is not None


def test_a_server_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    flags = ("--api-key-file", write(path, "clients: [{name: ada, keys: [one]}]"))

    def ask(key: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(f"{server.url}/v1/completions", json=BODY, headers=headers, timeout=120)

    with running(tmp_path / "log", "demo", *SMALL, *flags) as server:
        assert ask("one").status_code == 200
        assert ask("two").status_code == 401
        write(path, f"clients: [{{name: ben, keys: ['{digest('two')}'], requests_per_minute: 2}}]")
        deadline = time.monotonic() + 60
        while ask("one").status_code != 401:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert [ask("two").status_code for _ in range(3)] == [200, 200, 429]
        limited = ask("two")
        assert 1 <= int(limited.headers["retry-after"]) <= 30
        assert limited.json()["error"]["code"] == "rate_limit_exceeded"
        write(path, "clients: [{name: ben, keys: ['two'], tokens_per_minute: 40}]")
        server.wait_for("reloaded the API keys")
        deadline = time.monotonic() + 60
        while (answer := ask("two")).status_code == 429:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert answer.status_code == 200
        write(path, "nonsense")
        server.wait_for("cannot reload the API keys")
        server.signal(signal.SIGTERM)
        assert server.end() == 0, server.log
    assert "Traceback" not in server.log
