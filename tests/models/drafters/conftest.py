"""For all tests of what makes drafts on the device."""

import pytest

from jaxllm.speculation import device_drafts


@pytest.fixture(autouse=True)
def reads_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes drafts does not rest for comparisons: its drafts are compared with those of another implementation."""
    monkeypatch.setattr(device_drafts, "FIRST_COMPARISON", 10**6)
