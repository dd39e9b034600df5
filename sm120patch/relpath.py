"""The one rule for paths that come from manifests and diffs: relative POSIX, inside. Pure."""

from __future__ import annotations

_MAX_LENGTH = 1024


def fault(path: str) -> str | None:
    """Say why `path` may not name a file below a root, or return None when it may.

    Syntax only: links on disk are the business of whoever opens the file.
    """
    if not path:
        return "the path is empty"
    if len(path) > _MAX_LENGTH:
        return f"the path is longer than {_MAX_LENGTH} characters"
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        return f"{path!r} has a control character"
    if "\\" in path:
        return f"{path!r} has a backslash; paths are written with '/'"
    if path.startswith("/") or path[1:2] == ":":
        return f"{path!r} is absolute"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return f"{path!r} has an empty, '.' or '..' component"
    return None
