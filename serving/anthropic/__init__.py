"""Anthropic's Messages API: a request is translated to a chat, and the chat's reply to blocks and events."""
