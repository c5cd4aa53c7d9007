"""What the page loads, and what it asks of the server besides the API."""

from jaxllm.serving.http.operation import Handler
from jaxllm.serving.ui.about import show_about, show_model
from jaxllm.serving.ui.files import assets, show_asset
from jaxllm.serving.ui.live import show_events

PAGE: dict[str, Handler] = {
    **dict.fromkeys(assets(), show_asset),
    "/ui/about": show_about,
    "/ui/model": show_model,
    "/ui/events": show_events,
}
"""The routes of the page. Files need no key: they say nothing of the server."""
