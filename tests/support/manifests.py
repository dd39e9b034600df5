"""What all manifests of the tests begin with."""

from __future__ import annotations


def head(name: str) -> str:
    """The tables of a set before its changes."""
    return f"""\
schema = 1
[patch-set]
id = "{name}"
revision = 1
title = "Set {name}"
description = "For tests."
type = "unofficial"
[upstream]
status = "inappropriate"
reason = "tests"
last-checked = "2026-11-29"
"""
