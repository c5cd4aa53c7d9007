"""Clients of an engine in a process of its own.

All speak as `jaxllm.engine.engine.Engine` does: `BackgroundEngine` for synchronous callers,
`jaxllm.serving.llm.async_llm` for asynchronous ones; the engine itself is the client in the same process.
"""
