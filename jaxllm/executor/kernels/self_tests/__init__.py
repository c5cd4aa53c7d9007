"""Cases and tolerances of each operation's self-test."""
