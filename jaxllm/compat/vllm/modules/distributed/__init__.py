"""Several devices."""

import gc

__all__ = ["cleanup_dist_env_and_memory"]


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Free the device memory of engines that nobody holds any more."""
    del shutdown_ray
    gc.collect()
