"""What the self-test of each operation computes, and how far its kernel may be off."""
