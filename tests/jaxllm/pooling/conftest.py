from tests.compiled import compilation_cache, native_kernels

__all__ = ["compilation_cache", "native_kernels"]
