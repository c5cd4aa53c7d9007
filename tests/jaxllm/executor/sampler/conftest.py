from tests.compiled import compilation_cache

__all__ = ["compilation_cache"]
