"""Executables in a folder, so that an engine starts without compiling.

A bundle is `manifest.json` and one file per executable, in the runtime's own serialisation (PJRT). Nothing of it is
unpickled. Load only bundles you trust: they contain native code, see docs/programs.md.
"""
