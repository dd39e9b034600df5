"""Thin click commands: parse arguments, call an operation, print its result, map errors."""
