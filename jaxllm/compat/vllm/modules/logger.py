"""Loggers."""

import logging

__all__ = ["init_logger"]


def init_logger(name: str) -> logging.Logger:
    """Python's logger of this name; `JAXLLM_LOG_LEVEL` and `logging` are for all of them."""
    return logging.getLogger(name)
