"""Fetching, from a real server on a loopback port that means no good."""

import asyncio
import base64
import ipaddress
import os
import resource
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.errors import ConfigError
from jaxllm.serving.media.addresses import AddressPolicy, is_public
from jaxllm.serving.media.errors import MediaFetchError, MediaTooLargeError
from jaxllm.serving.media.fetch import MediaFetcher, read_data_url
from jaxllm.serving.options.media import MediaOptions
from tests.serving.media.hostile_server import (
    RawServer,
    endless,
    endless_chunks,
    endless_headers,
    ok,
    redirect,
    serving,
    silent,
    slow,
)

LOOPBACK = ("127.0.0.1/32",)
METADATA = "http://169.254.169.254/latest/meta-data/"


def fetcher(**options: object) -> MediaFetcher:
    defaults = {"allowed_media_networks": LOOPBACK, "max_image_bytes": 1 << 20, "image_fetch_timeout": 1.0}
    return MediaFetcher(MediaOptions(**{**defaults, **options}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server() -> Iterator[RawServer]:
    with serving(
        {
            "/image": ok(b"image"),
            "/a": redirect("/b"), "/b": redirect("image", "307 Temporary Redirect"),
            "/metadata": redirect(METADATA), "/metadata/again": redirect("/metadata", "308 Permanent Redirect"),
            "/mapped": redirect("http://[::ffff:169.254.169.254]/"), "/decimal": redirect("http://2852039166/"),
            "/local": redirect("//localhost:1/"), "/file": redirect("file:///etc/passwd"),
            "/data": redirect("data:image/png;base64,AAAA"), "/loop": redirect("/loop"),
            "/nowhere": redirect("http://[::"), "/far": redirect("/" + "x" * 10_000),
            "/endless": endless, "/chunks": endless_chunks, "/headers": endless_headers, "/slow": slow,
            "/silent": silent, "/short": ok(b"image", length=100), "/long": ok(b"image and more", length=5),
            "/claims": ok(b"image", length=1 << 40), "/absurd": ok(b"image", length=10**30),
            "/gzip": ok(b"\x1f\x8b", "Content-Encoding: gzip"), "/error": ok(b"secret", status="500 Oops"),
            "/gone": ok(b"", status="410 Gone"), "/nothing": b"", "/noise": b"\x00\x01\x02\r\n\r\n",
        }
    ) as found:  # fmt: skip
        yield found


def test_an_image_and_its_redirects(server: RawServer) -> None:
    urls = [f"http://127.0.0.1:{server.port}{path}" for path in ("/image", "/a", "/image#fragment")]
    assert fetcher().fetch_now(urls) == [b"image"] * 3
    asked = server.requests[-1].lower()
    assert f"host: 127.0.0.1:{server.port}\r\n" in asked
    assert "accept-encoding: identity" in asked
    assert "authorization" not in asked


async def test_a_running_event_loop_is_no_hindrance(server: RawServer) -> None:
    url = f"http://127.0.0.1:{server.port}/image"
    assert await fetcher().fetch(url) == b"image"
    assert await asyncio.to_thread(fetcher().fetch_now, [url]) == [b"image"]
    assert fetcher().fetch_now([url]) == [b"image"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/metadata", "'169.254.169.254' has an address that is not public"),
        ("/metadata/again", "not public"),
        ("/mapped", "not public"),
        ("/decimal", "not public"),
        ("/local", "connecting the image from 'localhost' failed"),
        ("/file", "use http or https"),
        ("/data", "use http or https|InvalidURL"),
        ("/loop", "redirects more than 5 times"),
        ("/nowhere", "RemoteProtocolError"),
        ("/far", "too long"),
        ("/headers", "fetching the image from '127.0.0.1' failed"),
        ("/slow", "more than 1 s"),
        ("/silent", "more than 1 s"),
        ("/short", "RemoteProtocolError"),
        ("/absurd", "RemoteProtocolError"),
        ("/gzip", "compresses"),
        ("/error", "status 500"),
        ("/gone", "status 410"),
        ("/missing", "status 404"),
        ("/nothing", "RemoteProtocolError"),
        ("/noise", "RemoteProtocolError"),
    ],
)
def test_what_servers_must_not_do(server: RawServer, path: str, message: str) -> None:
    began = time.monotonic()
    with pytest.raises(MediaFetchError, match=message) as error:
        fetcher().fetch_now([f"http://127.0.0.1:{server.port}{path}"])
    assert error.value.parameter == "image_url"
    assert "secret" not in str(error.value)
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("path", ["/endless", "/chunks", "/claims"])
def test_bytes_are_bounded(server: RawServer, path: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MediaTooLargeError, match="more than 1048576 bytes"):
        fetcher().fetch_now([f"http://127.0.0.1:{server.port}{path}"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


def test_a_body_ends_where_its_length_says(server: RawServer) -> None:
    assert fetcher().fetch_now([f"http://127.0.0.1:{server.port}/long"]) == [b"image"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "2130706433",
        "0x7f000001", "0177.0.0.1", "127.1", "10.0.0.1", "169.254.169.254", "[fe80::1]", "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]", "[::127.0.0.1]", "224.0.0.1", "255.255.255.255", "100.64.0.1",
    ],
)  # fmt: skip
def test_private_addresses_are_refused_in_any_notation(server: RawServer, host: str) -> None:
    count = len(server.requests)
    with pytest.raises(MediaFetchError, match=r"not (public|known)|malformed"):
        fetcher(allowed_media_networks=()).fetch_now([f"http://{host}:{server.port}/image"])
    assert len(server.requests) == count


def test_names_are_resolved_once_and_the_connection_goes_there(server: RawServer) -> None:
    """A name that means a public address when it is checked, and a private one when it is used."""
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["169.254.169.254"]

    options = MediaOptions(allowed_media_networks=LOOPBACK, image_fetch_timeout=1.0)
    url = f"http://images.test:{server.port}/image"
    assert MediaFetcher(options, resolver=rebinding).fetch_now([url]) == [b"image"]
    assert asked == ["images.test"]
    assert f"Host: images.test:{server.port}\r\n" in server.requests[-1]
    # A redirect to the same name is resolved again, and refused.
    asked.clear()
    with pytest.raises(MediaFetchError, match=r"'images.test' has an address that is not public"):
        MediaFetcher(options, resolver=rebinding).fetch_now([f"http://images.test:{server.port}/b"])


def test_a_name_with_one_private_address_is_refused(server: RawServer) -> None:
    async def mixed(host: str, port: int) -> list[str]:
        return ["127.0.0.1", "10.0.0.1"]

    options = MediaOptions(allowed_media_networks=LOOPBACK)
    with pytest.raises(MediaFetchError, match="not public") as error:
        MediaFetcher(options, resolver=mixed).fetch_now([f"http://images.test:{server.port}/image"])
    assert "10.0.0.1" not in str(error.value)


def test_the_next_address_of_a_host_is_tried(server: RawServer) -> None:
    async def two(host: str, port: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    options = MediaOptions(allowed_media_networks=("127.0.0.0/8",))
    url = f"http://images.test:{server.port}/image"
    assert MediaFetcher(options, resolver=two).fetch_now([url]) == [b"image"]


def test_domains(server: RawServer) -> None:
    async def loopback(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    options = MediaOptions(allowed_media_networks=LOOPBACK, allowed_media_domains=("Images.test",))
    found = MediaFetcher(options, resolver=loopback)
    assert found.fetch_now([f"http://IMAGES.test.:{server.port}/image"]) == [b"image"]
    for host in ("images.test.evil.test", "evil.test", "sub.images.test", "127.0.0.1"):
        with pytest.raises(MediaFetchError, match=r"allowed: images.test"):
            found.fetch_now([f"http://{host}:{server.port}/image"])
    # So are redirects.
    with pytest.raises(MediaFetchError, match=r"not fetched from '169.254.169.254'"):
        found.fetch_now([f"http://images.test:{server.port}/metadata"])
    with pytest.raises(MediaFetchError, match="user name"):
        found.fetch_now([f"http://images.test@evil.test:{server.port}/image"])


def test_certificates_are_of_the_host_and_not_of_the_address(tmp_path: Path) -> None:
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    subject = ["-subj", "/CN=images.test", "-addext", "subjectAltName=DNS:images.test"]
    subprocess.run(
        ["openssl", "req", *kind, "-keyout", key, "-out", certificate, *subject], check=True, capture_output=True
    )
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(certificate, key)

    async def loopback(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    options = MediaOptions(allowed_media_networks=LOOPBACK)
    trusting = MediaFetcher(options, resolver=loopback, context=ssl.create_default_context(cafile=certificate))
    with serving({"/image": ok(b"image")}, theirs) as server:
        assert trusting.fetch_now([f"https://images.test:{server.port}/image"]) == [b"image"]
        with pytest.raises(MediaFetchError, match="CERTIFICATE_VERIFY_FAILED"):
            trusting.fetch_now([f"https://other.test:{server.port}/image"])
        with pytest.raises(MediaFetchError, match="CERTIFICATE_VERIFY_FAILED"):
            MediaFetcher(options, resolver=loopback).fetch_now([f"https://images.test:{server.port}/image"])


def test_proxies_of_the_environment_are_not_asked(server: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert fetcher().fetch_now([f"http://127.0.0.1:{server.port}/image"]) == [b"image"]


@given(st.integers(0, 2**32 - 1))
def test_ipv6_forms_are_as_public_as_what_they_lead_to(number: int) -> None:
    inner = ipaddress.IPv4Address(number)
    for base in ("::ffff:0:0", "64:ff9b::"):
        assert is_public(ipaddress.IPv6Address(int(ipaddress.IPv6Address(base)) + number)) == is_public(inner)
    assert is_public(ipaddress.IPv6Address((0x2002 << 112) + (number << 80))) == is_public(inner)
    assert not is_public(ipaddress.IPv6Address(number))


def test_public_addresses_are_public() -> None:
    for text in ("8.8.8.8", "2001:4860:4860::8888", "1.1.1.1", "2606:4700::1"):
        assert is_public(ipaddress.ip_address(text))
    for text in ("ff02::1", "2001:db8::1", "64:ff9b:1::1", "2001::1", "fec0::1", "192.0.2.1", "240.0.0.1", "fd00::1"):
        assert not is_public(ipaddress.ip_address(text))


def test_networks_open_themselves_and_no_others() -> None:
    policy = AddressPolicy.read(("10.1.0.0/16", "fd00::/8"))
    allowed = {"10.1.2.3": True, "::ffff:10.1.2.3": True, "10.2.0.1": False, "fd12::1": True, "127.0.0.1": False}
    for text, expected in allowed.items():
        assert policy.allows(ipaddress.ip_address(text)) is expected
    every = AddressPolicy.read(("*",))
    assert all(every.allows(ipaddress.ip_address(text)) for text in (*allowed, "::1", "8.8.8.8"))
    with pytest.raises(ConfigError, match="allowed_media_networks"):
        AddressPolicy.read(("10.1.0.1/16",))


@pytest.mark.parametrize(
    "url",
    [
        "", "image.png", "ftp://example.org/x", "javascript:alert(1)", "http://", "http:///x", "HTTP:\n//x", "file:///etc/passwd",
        "http://a.test/" + "x" * 9000, "gopher://127.0.0.1/", "http://a b/", "http://[::1", "http://x:99999/",
    ],
)  # fmt: skip
def test_other_urls_are_errors(url: str) -> None:
    with pytest.raises(MediaFetchError):
        fetcher().fetch_now([url])


@given(st.binary(max_size=400))
def test_data_urls_give_their_bytes(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    for head in ("data:image/png;base64,", "data:;base64,", "DATA:image/jpeg;charset=x;BASE64,"):
        assert read_data_url(head + text, 400) == data


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png,abcd", "data:image/png;base64", "data:image/png;base64,AAA", "data:image/png;base64,AA A",
        "data:image/png;base64,AAAA\n", "data:image/png;base64,AA==AA==", "data:image/png;base64,A-_A",
        "data:image/png;base64,%41AAA", "data:image/png;base64,AAAA====", "data:image/png;base64,ÄAAA",
    ],
)  # fmt: skip
def test_data_urls_are_strict(url: str) -> None:
    with pytest.raises(MediaFetchError):
        fetcher().fetch_now([url])


def test_data_urls_are_bounded_before_they_are_decoded() -> None:
    limit = 1000
    exact = base64.b64encode(bytes(limit)).decode()
    assert len(read_data_url(f"data:;base64,{exact}", limit)) == limit
    for size in (limit + 1, limit + 2, 10 * limit):
        with pytest.raises(MediaTooLargeError):
            read_data_url(f"data:;base64,{base64.b64encode(bytes(size)).decode()}", limit)
    # Nothing is decoded of what is too long, so that it does not matter what it is.
    with pytest.raises(MediaTooLargeError):
        read_data_url("data:;base64," + "!" * 2000, limit)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "media"
    (inside / "inner").mkdir(parents=True)
    (inside / "inner" / "a b.png").write_bytes(b"image")
    (inside / "large").write_bytes(bytes(2 << 20))
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media-too").mkdir()
    (tmp_path / "media-too" / "x").write_bytes(b"secret")
    (inside / "out").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to(tmp_path)
    (inside / "in").symlink_to(inside / "inner" / "a b.png")
    (inside / "circle").symlink_to(inside / "circle")
    os.mkfifo(inside / "pipe")
    return inside


def test_files_below_the_folder(folder: Path) -> None:
    found = fetcher(allowed_local_media_path=str(folder))
    for url in (f"file://{folder}/inner/a%20b.png", f"file://localhost{folder}/inner/a b.png", f"file://{folder}/in"):
        assert found.fetch_now([url]) == [b"image"]
    with pytest.raises(MediaTooLargeError):
        found.fetch_now([f"file://{folder}/large"])


@pytest.mark.parametrize(
    "path",
    [
        "out", "up/secret", "../secret", "%2e%2e/secret", "inner/../../secret", "../media-too/x", "circle", "pipe",
        "inner", "", "missing", "a%00b", "in?x=1",
    ],
)  # fmt: skip
def test_nothing_outside_and_no_other_kind_of_file(folder: Path, path: str) -> None:
    with pytest.raises(MediaFetchError) as error:
        fetcher(allowed_local_media_path=str(folder)).fetch_now([f"file://{folder}/{path}"])
    assert "secret" not in str(error.value).replace(str(folder.parent), "").replace(path, "")


def test_a_link_made_after_the_check_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is replaced by a link between resolving the path and opening the file."""
    from jaxllm.serving.media.local_files import LocalFolder

    local, real = LocalFolder(str(folder)), Path.resolve

    def resolve_and_swap(self: Path, strict: bool = False) -> Path:
        found = real(self, strict)
        (folder / "inner").rename(folder / "moved")
        (folder / "inner").symlink_to(folder.parent / "media-too")
        return found

    (folder / "inner" / "x").write_bytes(b"image")
    monkeypatch.setattr(Path, "resolve", resolve_and_swap)
    with pytest.raises(MediaFetchError):
        local.read(str(folder / "inner" / "x"), 100)


def test_the_folder_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        fetcher(allowed_local_media_path=str(tmp_path / "missing"))
    with pytest.raises(MediaFetchError, match="--allowed-local-media-path"):
        fetcher().fetch_now([f"file://{tmp_path}/x"])
