"""Beam search: which continuations survive (`policy`), and the sequences they share pages in (`group`)."""
