"""Compile a patched module ahead of the server; prove from PTX that the patched code is in it."""
