"""OpenAI's Responses API: a request is translated to a chat, and the chat's reply to items and events."""
