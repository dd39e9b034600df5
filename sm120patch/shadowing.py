"""Tells what Python loads in place of a source beside it. Pure: directories are handed in.

The order is that of `importlib`: a package, then an extension module, then the source.
"""

from collections.abc import Callable, Collection


def is_extension(suffix: str, tag: str) -> bool:
    """Tell whether a Python with that tag (`cpython-311`) loads a file by the end of its name."""
    own = bool(tag) and suffix.startswith(f"{tag}-") and suffix.endswith(".so")
    return own or suffix in ("so", "abi3.so")


def loaded_instead(names: Callable[[str], Collection[str]], path: str, tag: str) -> str:
    """Name the file that is loaded in place of the source at `path`; empty where it is that one.

    `names` lists a directory below the same root, and nothing where there is none.
    """
    above, _, name = path.rpartition("/")
    stem, _, suffix = name.rpartition(".")
    if suffix != "py":
        return ""
    beside = names(above)
    if stem in beside and stem != "__init__":
        for entry in sorted(names(f"{above}/{stem}")):
            first, _, kind = entry.partition(".")
            if first == "__init__" and (kind in ("py", "pyc") or is_extension(kind, tag)):
                return f"{above}/{stem}/{entry}"
    for entry in sorted(beside):
        first, _, kind = entry.partition(".")
        if first == stem and is_extension(kind, tag):
            return f"{above}/{entry}"
    return ""
