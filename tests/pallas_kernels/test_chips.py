"""The table of chips: consistent in itself, and with what JAX says of the devices of each topology."""

import pytest

from jaxllm.pallas_kernels.chips import CHIPS, Chip, chip_of

TPUS = [chip for chip in CHIPS.values() if chip.platform == "tpu"]


@pytest.mark.parametrize("chip", TPUS, ids=lambda chip: chip.name)
def test_the_peak_is_what_the_matrix_units_can_do(chip: Chip) -> None:
    units = chip.clock_hz * chip.cores * chip.mxus * chip.mxu**2 * 2 * chip.mxu_rows
    assert units == pytest.approx(chip.bf16_flops, rel=0.005)


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)
def test_a_chip_is_found_by_its_device_kind(chip: Chip) -> None:
    assert chip_of(chip.device_kind) is chip
    assert CHIPS[chip.name] is chip


@pytest.mark.parametrize("chip", TPUS, ids=lambda chip: chip.name)
def test_jax_agrees(chip: Chip) -> None:
    """JAX's own table of TPUs, written by its authors, is per core."""
    from jax._src.pallas.mosaic import tpu_info

    version = tpu_info.chip_version_from_device_kind(chip.device_kind)
    assert version is not None
    info = tpu_info.get_tpu_info_for_chip(version, chip.cores)
    assert (chip.mxu, chip.mxus) == (info.mxu_column_size, info.num_mxus)
    assert info.bf16_ops_per_second * chip.cores == pytest.approx(chip.bf16_flops, rel=0.01)
    assert info.hbm_capacity_bytes * chip.cores == pytest.approx(chip.hbm_bytes, rel=0.02)
    assert info.mem_bw_bytes_per_second * chip.cores == pytest.approx(chip.hbm_bandwidth, rel=0.13)


def test_an_unknown_device_has_no_chip() -> None:
    assert chip_of("cpu") is None
