"""Answers from inside a Python environment what it would import, and which bytes.

Runs as `EXE -I -c <this text> environment|files PACKAGE...` in the *target* interpreter, so it
uses the standard library only and imports none of the packages it is asked about. Reads disk only.

A question about files comes on standard input, with `inspection` as the means to answer it: what
only some questions need is not loaded for the others. The answer is JSON in which control
characters stand as they are; Python's `json` would load as much as the interpreter itself.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENVIRONMENT, FILES = "environment", "files"
"""What is asked about beside the packages."""
BEGIN = "<<<sm120patch "
END = " sm120patch>>>"
"""Site hooks may print; only what stands between these two is ours."""


def find_spec(package: str) -> "Any":
    """What `importlib.util` finds for a top-level name, without what that module loads first."""
    if package in sys.modules:  # a start-up file has imported it
        return sys.modules[package].__spec__
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    specs = (finder.find_spec(package, None) for finder in finders)
    return next((spec for spec in specs if spec is not None), None)


def find(package: str) -> "dict[str, Any]":
    """Say where a top-level package would come from, without importing it."""
    try:
        spec = find_spec(package)
    except Exception as error:  # an import hook of the environment may raise anything
        return {"error": f"{type(error).__name__}: {error}"}
    if spec is None:
        return {}
    locations = spec.submodule_search_locations
    return {
        "origin": spec.origin if spec.has_location else None,
        "locations": None if locations is None else [str(entry) for entry in locations],
    }


def describe() -> "dict[str, Any]":
    """Facts about the interpreter."""
    import site

    return {
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "cache_tag": sys.implementation.cache_tag or "",
        "path": [entry for entry in sys.path if entry],
        "site": site_directories(),
        "user_site": site.getusersitepackages(),
    }


def site_directories() -> "list[str]":
    """Where pure packages and others are installed.

    `sysconfig` gives their form at once, and loads a table of what Python was built with to fill
    it in; that is left to it only where the form asks for more than the interpreter knows itself.
    """
    import sysconfig

    forms = sysconfig.get_paths(expand=False)
    known = {
        "base": os.path.normpath(sys.prefix),
        "platbase": os.path.normpath(sys.exec_prefix),
        "platlibdir": sys.platlibdir,
        "py_version_short": ".".join(str(part) for part in sys.version_info[:2]),
    }
    try:
        return [os.path.normpath(forms[kind].format(**known)) for kind in ("purelib", "platlib")]
    except KeyError:
        paths = sysconfig.get_paths()
        return [paths["purelib"], paths["platlib"]]


def inspect(question: str) -> "list[dict[str, Any]]":
    """Say what files hold.

    `question`: texts that each end in NUL, the source of `inspection`, the pycache prefix (or
    nothing), then import root and relative path of every file.
    """
    source, prefix, *words = question.split("\0")[:-1]
    means: dict[str, Any] = {"__name__": "inspection"}
    exec(source, means)
    sys.pycache_prefix = prefix or None
    pairs = zip(words[::2], words[1::2])  # noqa: B905 - a target's Python 3.9 has no `strict`
    return [means["inspect"](root, path) for root, path in pairs]


def write(value: object) -> str:
    """Put facts (texts, truths, nothing, lists and dicts) as JSON."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{" + ",".join([write(k) + ":" + write(v) for k, v in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([write(v) for v in value]) + "]"
    return "null" if value is None else "true" if value else "false"


def main() -> None:
    """Say where packages come from and, as asked, `describe` or what files hold."""
    kind, *packages = sys.argv[1:]
    facts = describe() if kind == ENVIRONMENT else {}
    facts["packages"] = {package: find(package) for package in packages}
    question = os.fsdecode(sys.stdin.buffer.read())
    if kind == FILES:
        facts["files"] = inspect(question)
    sys.stdout.flush()
    with open(1, "wb", closefd=False) as stream:
        stream.write((BEGIN + write(facts) + END).encode("utf-8", "surrogatepass"))
    os._exit(0)  # exit hooks of the environment may take their time, or never end


if __name__ == "__main__":
    main()
