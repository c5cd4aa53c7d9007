"""The order of files of tests."""

from tests.conftest import ROOT
from tests.order import LONG, LONG_SLOW, SLOW, is_slow, place_of


def test_files_that_take_long_are_there_and_named_once() -> None:
    names = (*LONG_SLOW, *LONG)
    assert len(set(names)) == len(names)
    assert len(set(SLOW)) == len(SLOW)
    assert [name for name in (*names, *SLOW) if not (ROOT / "tests" / name).exists()] == []


def test_they_come_first() -> None:
    assert place_of(f"tests/{LONG[0]}::test_it[1]") < place_of(f"tests/{LONG[1]}::test_it") < place_of("tests/a.py::b")


def test_files_and_folders_are_slow() -> None:
    assert is_slow("tests/e2e/parallel/test_ray.py::test_it[1]")
    assert is_slow("tests/benchmarks/test_models.py::test_it")
    assert not is_slow("tests/e2e/test_adapters.py::test_it")
