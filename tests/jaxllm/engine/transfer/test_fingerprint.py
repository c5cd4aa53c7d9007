"""Pages of one form become those of another, as NumPy repeats heads."""

import numpy as np
import pytest
from msgspec.structs import replace

from jaxllm.engine.transfer.fingerprint import Fingerprint, converted, form_bytes, form_problem
from jaxllm.engine.transfer.wire import VERSION, PageForm


def form(repeats: int, rows: int = 1, **more: object) -> PageForm:
    made = PageForm("bfloat16:2", (3, 2, 2 * repeats * rows, 5, 4), 2, 2, repeats, 0)
    return replace(made, **more)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (2, 1), (2, 4), (3, 2)])
@pytest.mark.parametrize("rows", [1, 2])
def test_heads_are_repeated(before: int, after: int, rows: int) -> None:
    heads = np.random.default_rng(0).integers(0, 255, (3, 2, 2, rows, 5, 4 * 2), np.uint8)
    pages = [np.repeat(heads, repeats, 2).reshape(-1) for repeats in (before, after)]
    given, wanted = form(before, rows), form(after, rows)
    assert form_problem(given, wanted) is None
    assert len(pages[0]) == form_bytes(given)
    assert np.array_equal(converted(pages[0], given, wanted), pages[1])


@pytest.mark.parametrize(
    "other",
    [
        form(2, dtype="float16:2"), form(2, shape=(3, 2, 4, 5, 8)), form(2, shape=(3, 2, 3, 5, 4)), form(2, heads=4),
        form(2, heads_axis=-1), form(2, heads_axis=9), form(2, heads=0), replace(form(2), repeats=0),
        form(2, state_bytes=8), form(2, devices=2), form(2, 2), PageForm("", (), 0, 1, 1, 0),
    ],
)  # fmt: skip
def test_forms_that_do_not_fit(other: PageForm) -> None:
    assert form_problem(form(1), other)
    assert form_problem(other, form(1))


def test_pages_that_are_laid_out_for_each_device() -> None:
    problem = str(form_problem(form(1, devices=1), form(1, devices=2)))
    assert "laid out for 2 devices there, and for 1 here; use the same tensor_parallel_size" in problem


def test_who_is_refused() -> None:
    own = Fingerprint(b"one", form(1))
    assert own.problem(own.hello) is None
    assert "fingerprints differ" in str(own.problem(Fingerprint(b"two", form(1)).hello))
    hello = own.hello
    hello.version = VERSION + 1
    assert "protocol" in str(own.problem(hello))
