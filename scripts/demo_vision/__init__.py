"""The demo model that sees: pictures of shapes, questions about them, and training on both."""
