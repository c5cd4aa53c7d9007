#!/usr/bin/env bash
# Installs jaxllm and its service, and starts it: SOURCE is a checkout, a wheel, or a name that pip knows.
set -euo pipefail
SOURCE=${SOURCE:-.}
EXTRA='[tpu]'

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
