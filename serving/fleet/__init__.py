"""A router in front of several servers, and fleets of them on one machine: prompts in some, decoding in others."""
