"""Thin click commands: parse arguments, call an operation, print its result, map errors."""

from __future__ import annotations

import gc

# Importing makes a hundred thousand objects that stay, and the collector would go through them
# again and again: a tenth of a short command.
gc.set_threshold(100_000, 20, 100)
