"""Limits of the process."""

import logging

__all__ = ["set_ulimit"]

logger = logging.getLogger(__name__)


def set_ulimit(target_soft_limit: int = 65535) -> None:
    """Let this process open so many files, if it may."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= target_soft_limit:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target_soft_limit, hard))
    except (ValueError, OSError) as error:
        logger.warning("cannot raise the limit of open files above %d: %s", soft, error)
