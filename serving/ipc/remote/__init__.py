"""Engines on other hosts: a host dials the server over TCP, and carries messages to the engines that it runs."""
