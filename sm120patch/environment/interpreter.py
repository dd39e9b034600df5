"""Finds the interpreter of the environment that is meant. Reads disk only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sm120patch.errors import HostError, UsageError

_HINT = "name the environment that runs SGLang: --env PREFIX (or --python EXE)"


def locate(env: str | None, python: str | None, environ: Mapping[str, str]) -> Path:
    """Return the absolute path of the target's interpreter, symbolic links kept.

    `env` is the prefix of a virtual, conda or system environment, `python` a path or a name on
    PATH. Without either the active environment (`VIRTUAL_ENV`, then `CONDA_PREFIX`) is taken; the
    interpreter that runs sm120patch itself is never used just because it is there. Raises
    UsageError when nothing or too much is named, HostError when there is no interpreter.
    """
    if env is not None and python is not None:
        raise UsageError(
            f"--env {env} and --python {python} were both given; one of them names the environment",
            hint="leave one of the two out",
        )
    if python is not None:
        return _executable(python, environ)
    if env is not None:
        return _interpreter_of(Path(env), f"--env {env}")
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if value := environ.get(variable):
            return _interpreter_of(Path(value), f"{variable}={value}")
    raise UsageError(
        "no environment was named and none is active: looked at --env and --python (not given), "
        "VIRTUAL_ENV and CONDA_PREFIX (not set)",
        hint=_HINT,
        code="no-environment",
    )


def _executable(name: str, environ: Mapping[str, str]) -> Path:
    if os.sep in name:
        found = Path(name).absolute()
        if not found.exists():
            raise HostError(f"--python {name}: no such file", hint=_HINT, code="no-interpreter")
        return _checked(found, f"--python {name}")
    import shutil  # it loads three kinds of compression

    path = shutil.which(name, path=environ.get("PATH", os.defpath))
    if path is None:
        raise HostError(
            f"--python {name}: no such command on PATH", hint=_HINT, code="no-interpreter"
        )
    return Path(path).absolute()


def _interpreter_of(prefix: Path, asked: str) -> Path:
    prefix = prefix.expanduser().absolute()
    candidates = [prefix / "bin" / "python3", prefix / "bin" / "python"]
    for candidate in candidates:
        if candidate.exists():
            return _checked(candidate, asked)
    if prefix.is_file():
        raise HostError(
            f"{asked}: {prefix} is a file, expected the prefix of an environment",
            hint=f"pass an interpreter with --python {prefix}",
            code="no-interpreter",
        )
    dangling = [str(candidate) for candidate in candidates if candidate.is_symlink()]
    found = f"dangling link {dangling[0]}" if dangling else "none of them"
    raise HostError(
        f"{asked}: looked for {candidates[0]} and {candidates[1]}, found {found}",
        hint=_HINT,
        code="no-interpreter",
    )


def _checked(path: Path, asked: str) -> Path:
    if not path.is_file() or not os.access(path, os.X_OK):
        raise HostError(
            f"{asked}: {path} is not an executable file", hint=_HINT, code="no-interpreter"
        )
    return path
