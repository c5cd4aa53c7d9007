"""The demo model that hears: clips that espeak-ng speaks, and training on them."""
