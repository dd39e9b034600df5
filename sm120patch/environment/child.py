"""Answers from inside a Python environment what it would import, and which bytes.

Runs as `EXE -I -c <this text> PACKAGE...` in the *target* interpreter, so it uses the standard
library only and imports none of the packages it is asked about. Reads disk only.

It answers at once where the packages would come from. Then it waits: whoever started it may ask
about files, with `inspection` as the means, and gets a second answer, or closes the pipe and lets
it go. Every start of an interpreter counts: what only some questions need comes with them, and
JSON is written by hand, since the modules for it cost as much as the interpreter itself.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BEGIN = "<<<sm120patch "
END = " sm120patch>>>"
"""Site hooks may print; only what stands between these two is ours."""


def find(package: str) -> dict[str, Any]:
    """Say where a top-level package would come from, without importing it."""
    try:
        spec = _spec(package)
    except Exception as error:  # an import hook of the environment may raise anything
        return {"error": f"{type(error).__name__}: {error}"}
    if spec is None:
        return {}
    locations = spec.submodule_search_locations
    return {
        "origin": spec.origin if spec.has_location else None,
        "locations": None if locations is None else [str(entry) for entry in locations],
    }


def _spec(package: str) -> Any:
    """Do what `importlib.util.find_spec` does for a top-level name."""
    if package in sys.modules:
        return sys.modules[package].__spec__
    for finder in sys.meta_path:
        search = getattr(finder, "find_spec", None)
        spec = None if search is None else search(package, None, None)
        if spec is not None:
            return spec
    return None


def describe(packages: list[str]) -> dict[str, Any]:
    """Facts about the interpreter and where each of `packages` would come from."""
    import site
    import sysconfig

    paths = sysconfig.get_paths()
    return {
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "cache_tag": sys.implementation.cache_tag or "",
        "path": [entry for entry in sys.path if entry],
        "site": [paths["purelib"], paths["platlib"]],
        "user_site": site.getusersitepackages(),
        "packages": {package: find(package) for package in packages},
    }


def origins() -> dict[str, tuple[int, ...]]:
    """Everything that decided how this interpreter started, with what tells a change of it.

    The executable, `pyvenv.cfg`, the directories of `sys.path` (a name that comes or goes changes
    them), the `.pth` files, and every source that start-up ran.
    """
    names = {sys.executable, f"{sys.prefix}/pyvenv.cfg", *sys.path}
    for directory in sys.path:
        if directory.endswith("-packages"):
            try:
                entries = os.listdir(directory)
            except OSError:
                continue
            names |= {f"{directory}/{name}" for name in entries if name.endswith(".pth")}
    names |= {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    found: dict[str, tuple[int, ...]] = {}
    for name in names:
        try:
            status = os.stat(name)
        except OSError:
            continue
        found[name] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return found


def text(value: object) -> str:
    """Write JSON: objects, lists, texts, true and false, null."""
    if isinstance(value, dict):
        inside = ", ".join(f"{text(key)}: {text(inner)}" for key, inner in value.items())
        return "{" + inside + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(map(_character, value)) + '"'
    return {True: "true", False: "false", None: "null"}[value]  # type: ignore[index]


def _character(one: str) -> str:
    number = ord(one)
    if number > 0xFFFF:
        return _character(chr(0xD7C0 + (number >> 10))) + _character(chr(0xDC00 + (number & 0x3FF)))
    return one if 32 <= number < 127 and one not in '"\\' else f"\\u{number:04x}"


def say(facts: dict[str, Any]) -> None:
    """Write one answer."""
    sys.stdout.write(BEGIN + text(facts) + END)
    sys.stdout.flush()


def main() -> None:
    """Answer `describe` of the arguments, then, if asked, what files hold.

    The question: texts that each end in NUL, the source of `inspection`, the pycache prefix (or
    nothing), then import root and relative path of every file. Without one, the end of the input
    is the end.
    """
    packages = sys.argv[1:]
    say(describe(packages))
    seen = origins()
    question = os.fsdecode(sys.stdin.buffer.read())
    if question:
        source, prefix, *words = question.split("\0")[:-1]
        means: dict[str, Any] = {"__name__": "inspection"}
        exec(source, means)
        sys.pycache_prefix = prefix or None
        sys.path_importer_cache.clear()
        files = [means["inspect"](root, path) for root, path in zip(words[::2], words[1::2])]  # noqa: B905
        found = {package: find(package) for package in packages}
        # A file that is new changes the directory that it came into.
        now = origins()
        same = all(now.get(name) == facts for name, facts in seen.items())
        say({"packages": found, "files": files, "as_started": same})
    os._exit(0)  # nothing is left to be done, and the interpreter takes milliseconds to say so


if __name__ == "__main__":
    main()
