"""Fetches the libraries of the web page from npm into serving/ui/static/vendor, and checks them.

python -m scripts.vendor_ui            fetch what `pins.json` names; a tarball with another digest is refused
python -m scripts.vendor_ui --check    compare the files that are there with `pins.json`, without fetching

To take another version, change `pins.json` (npm view PACKAGE@VERSION dist.integrity) and fetch with --pin, which writes
the new digests of the files.
"""

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).resolve().parent.parent / "serving" / "ui" / "static" / "vendor"
PINS = VENDOR / "pins.json"


def digest(data: bytes) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(data).hexdigest()


def wrong_files() -> list[str]:
    """Files in the folder that differ from the pins, are missing, or are not pinned."""
    pins = json.loads(PINS.read_text(encoding="utf-8"))
    pinned = {name: each["sha256"] for package in pins.values() for name, each in package["files"].items()}
    there = {path.name: digest(path.read_bytes()) for path in VENDOR.iterdir() if path != PINS}
    return sorted(name for name in pinned.keys() | there.keys() if pinned.get(name) != there.get(name))


def fetched(package: str, pin: dict[str, Any]) -> dict[str, bytes]:
    """The pinned files of a package. Raises `SystemExit` for a tarball that is not the pinned one."""
    name = f"{package}@{pin['version']}"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", name], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (tarball,) = Path(folder).iterdir()
        found = "sha512-" + base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
        if found != pin["integrity"]:
            raise SystemExit(f"{name}: the tarball's digest is {found}, not {pin['integrity']}")
        with tarfile.open(tarball) as archive:
            return {file: _text(archive, each["from"], each.get("replace", {})) for file, each in pin["files"].items()}


def _text(archive: tarfile.TarFile, member: str, replace: dict[str, str]) -> bytes:
    """A file of the package. Without a build step a module must name others by their paths: `replace` does that."""
    file = archive.extractfile(f"package/{member}")
    assert file is not None
    text = file.read().decode()
    for old, new in replace.items():
        if text.count(old) != 1:
            raise SystemExit(f"{member}: {old!r} is there {text.count(old)} times, not once")
        text = text.replace(old, new)
    # Maps are not served, and a browser's tools would ask for them.
    lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL=")]
    return ("\n".join(lines) + "\n").encode()


def main() -> int:
    """Fetch or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--pin", action="store_true", help="write the digests of the fetched files")
    args = parser.parse_args()
    if not args.check:
        pins = json.loads(PINS.read_text(encoding="utf-8"))
        for package, pin in pins.items():
            for name, data in fetched(package, pin).items():
                (VENDOR / name).write_bytes(data)
                if args.pin:
                    pin["files"][name]["sha256"] = digest(data)
        PINS.write_text(json.dumps(pins, indent=2) + "\n", encoding="utf-8")
    wrong = wrong_files()
    for name in wrong:
        print(f"{name}: differs from its pin in {PINS.name}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
