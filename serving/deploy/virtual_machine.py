"""A plain machine, such as a TPU VM: a unit of systemd, and a script that brings it up."""

import shlex
from collections.abc import Mapping

from jaxllm.errors import ConfigError
from jaxllm.serving.deploy.container import grace, longest_start, serve_arguments
from jaxllm.serving.deploy.installation import PORT, Installation

_HOME = "/opt/jaxllm"
_KEYS = "/etc/jaxllm/keys"
_CACHE = "/var/cache/jaxllm"

_SCRIPT = """\
if ! id jaxllm >/dev/null 2>&1; then
    useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin jaxllm
fi
[ -x /opt/jaxllm/bin/python ] || python3 -m venv /opt/jaxllm
/opt/jaxllm/bin/pip install --upgrade "$SOURCE$EXTRA"

install --directory --mode 0755 /etc/jaxllm
if [ ! -s /etc/jaxllm/keys ]; then
    (umask 077 && head --bytes 32 /dev/urandom | base64 --wrap 0 >/etc/jaxllm/keys)
fi

# The service's user reaches the chips, also after a restart of the machine.
if compgen -G '/dev/accel*' >/dev/null || compgen -G '/dev/vfio/[0-9]*' >/dev/null; then
    cat >/etc/udev/rules.d/99-jaxllm.rules <<'RULES'
KERNEL=="accel[0-9]*", GROUP="jaxllm", MODE="0660"
SUBSYSTEM=="vfio", GROUP="jaxllm", MODE="0660"
RULES
    udevadm control --reload
    udevadm trigger
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
install --mode 0644 "$here/jaxllm.service" /etc/systemd/system/jaxllm.service
systemctl daemon-reload
# It returns once the server answers.
systemctl enable --now jaxllm.service
"""


def machine_files(installation: Installation) -> dict[str, str]:
    """The unit and the script. Raises `ConfigError` for what takes several machines or a bucket."""
    if installation.hardware.hosts > 1:
        raise ConfigError(
            "--format systemd supports one machine; for several use --format kubernetes, or give a smaller --topology"
        )
    if installation.executables is not None or installation.weights_bucket is not None:
        raise ConfigError(
            "--format systemd supports neither --bucket nor --executables; omit them, and give the model as a folder "
            "of the machine or a Hub ID"
        )
    return {"jaxllm.service": unit(installation), "install.sh": install_script(installation)}


def unit(installation: Installation) -> str:
    """`jaxllm.service`: a user without rights, restarts, and as long to end as running requests have."""
    arguments = serve_arguments(installation)
    credential = []
    if installation.api_keys:
        # systemd shows the file to the service alone, whoever owns it.
        arguments[arguments.index("--api-key-file") + 1] = "%d/keys"
        credential = [("LoadCredential", f"keys:{_KEYS}")]
    start = longest_start(installation)
    wait = f"--retry {start // 2} --retry-delay 2 --retry-all-errors --max-time {start}"
    sections: Mapping[str, list[tuple[str, str]]] = {
        "Unit": [
            ("Description", f"jaxllm serves {installation.model}"),
            ("Wants", "network-online.target"),
            ("After", "network-online.target"),
            ("StartLimitIntervalSec", "600"),
            ("StartLimitBurst", "5"),
        ],
        "Service": [
            ("Type", "exec"),
            ("ExecStart", f"{_HOME}/bin/jaxllm {shlex.join(arguments)}"),
            ("ExecStartPost", f"/usr/bin/curl --silent --fail {wait} http://127.0.0.1:{PORT}/ready"),
            ("TimeoutStartSec", str(start + 60)),
            *credential,
            ("User", "jaxllm"),
            ("Group", "jaxllm"),
            ("Environment", f"XDG_CACHE_HOME={_CACHE} HF_HOME={_CACHE}/huggingface PYTHONUNBUFFERED=1"),
            # HF_TOKEN=... for models that the Hub shows to few.
            ("EnvironmentFile", "-/etc/jaxllm/environment"),
            ("CacheDirectory", "jaxllm"),
            ("Restart", "on-failure"),
            ("RestartSec", "5"),
            ("KillMode", "mixed"),
            ("TimeoutStopSec", str(grace(installation))),
            ("LimitNOFILE", "65536"),
            ("LimitMEMLOCK", "infinity"),
            ("NoNewPrivileges", "yes"),
            ("ProtectSystem", "strict"),
            ("ProtectHome", "yes"),
            ("PrivateTmp", "yes"),
        ],
        "Install": [("WantedBy", "multi-user.target")],
    }
    written = ([f"[{name}]", *(f"{key}={value}" for key, value in lines)] for name, lines in sections.items())
    return "\n\n".join("\n".join(lines) for lines in written) + "\n"


def install_script(installation: Installation) -> str:
    """A script to run as root alongside the unit; again, it does what is not done yet."""
    extra = {"tpu": "[tpu]", "gpu": "[cuda]", "cpu": ""}[installation.hardware.platform]
    head = [
        "#!/usr/bin/env bash",
        "# Installs jaxllm and its service, and starts it: SOURCE is a checkout, a wheel, or a name that pip knows.",
        "set -euo pipefail",
        "SOURCE=${SOURCE:-.}",
        f"EXTRA='{extra}'",
    ]
    return "\n".join(head) + "\n\n" + _SCRIPT
