"""Where files of the user belong, by the XDG base directory specification. Reads no disk."""

import os
from collections.abc import Mapping
from pathlib import Path

_DEFAULTS = {
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_STATE_HOME": ".local/state",
}


def user_directory(variable: str, environ: Mapping[str, str]) -> Path:
    """Return our directory below that of the variable; a relative one counts as unset."""
    base = Path(environ.get(variable, ""))
    if not base.is_absolute():
        # A user whom nobody knows, as in a container, has no home: `~` then stays as it is.
        home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - never raises
        base = Path("/", home.removeprefix("~"), _DEFAULTS[variable])
    return base / "sm120patch"
