"""Shared by chats, completions and responses."""
