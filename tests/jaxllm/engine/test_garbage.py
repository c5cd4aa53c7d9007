"""When garbage is collected."""

import gc

import pytest

from jaxllm.engine.garbage import paused


def test_no_collections_until_the_outermost_block_ends() -> None:
    with paused():
        with paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collections_go_on_after_a_failure() -> None:
    with pytest.raises(ValueError, match="broken"), paused():
        raise ValueError("broken")
    assert gc.isenabled()


def test_who_has_turned_them_off_keeps_them_off() -> None:
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
