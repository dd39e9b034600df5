"""Signed catalogues: a list of every file with its sha256, signed with an SSH key.

Reads a catalogue directory and runs `ssh-keygen -Y`; `sign` writes two files into the directory.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from sm120patch.disk import write_file
from sm120patch.errors import CatalogueError, HostError, UsageError
from sm120patch.model import sha256_hex

LIST = "CATALOGUE.sha256"
SIGNATURE = f"{LIST}.sig"
NAMESPACE = "sm120patch-catalogue"
_PARTS = ("manifests", "patches")
_MAX_FILES, _MAX_BYTES = 10_000, 64 << 20
_TIMEOUT = 60


def listing(directory: Path) -> bytes:
    """List every file below `manifests/` and `patches/`: `sha256  path`, sorted by path.

    Raises CatalogueError for links, for other things than files, and for more than a catalogue
    can be.
    """
    lines: list[str] = []
    total = 0
    for part in _PARTS:
        for path in sorted((directory / part).rglob("*")):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise _fault(directory, f"{path} is no regular file")
            if path.is_dir():
                continue
            total += path.stat().st_size
            if len(lines) >= _MAX_FILES or total > _MAX_BYTES:
                raise _fault(directory, f"more than {_MAX_FILES} files or {_MAX_BYTES} bytes")
            name = path.relative_to(directory).as_posix()
            lines.append(f"{sha256_hex(path.read_bytes())}  {name}\n")
    return "".join(sorted(lines, key=lambda line: line[66:])).encode("utf-8", "surrogateescape")


def sign(directory: Path, key: Path) -> Path:
    """Write the list and its signature by `key` (a private key, or a public one held by an agent).

    Returns the signature file. Raises HostError when ssh-keygen refuses.
    """
    if not (directory / "manifests").is_dir():
        raise UsageError(
            f"{directory} is no catalogue: it has no manifests/",
            hint="name the directory that holds manifests/ and patches/",
        )
    data = listing(directory)
    signature = _ssh_keygen(["-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE], data)
    if signature.returncode != 0:
        raise HostError(
            f"ssh-keygen does not sign with {key}: {_first_line(signature)}",
            hint="name a private SSH key, or a public one whose private half the agent holds",
        )
    try:
        write_file(directory / LIST, data)
        write_file(directory / SIGNATURE, signature.stdout)
    except OSError as error:
        raise HostError(
            f"the signature cannot be written into {directory}: {error.strerror or error}",
            hint="mend the cause and sign again: until then nobody takes the catalogue",
        ) from error
    return directory / SIGNATURE


def check(directory: Path, allowed_signers: Path) -> str:
    """Return who signed the catalogue as it is now; `allowed_signers` is ssh's format.

    Raises CatalogueError when it is not signed, was changed since, or was signed by somebody else,
    HostError when ssh-keygen is missing.
    """
    listed, signature = directory / LIST, directory / SIGNATURE
    try:
        data = listed.read_bytes()
        signature.stat()
    except OSError as error:
        raise _fault(directory, f"not signed: {error.filename}: {error.strerror}") from error
    where = ["-f", str(allowed_signers), "-s", str(signature)]
    named = _ssh_keygen(["-Y", "find-principals", *where], data)
    principals = named.stdout.decode("utf-8", "replace").splitlines()
    for principal in principals if named.returncode == 0 else ():
        words = ["-Y", "verify", "-I", principal, "-n", NAMESPACE, *where]
        if _ssh_keygen(words, data).returncode == 0:
            _require_same(directory, data)
            return principal
    raise _fault(directory, f"no signer in {allowed_signers} has signed {listed}")


def _require_same(directory: Path, signed: bytes) -> None:
    """What was signed must be exactly what is there: nothing changed, missing or added."""
    found, listed = (set(text.splitlines()) for text in (listing(directory), signed))
    paths = sorted({line[66:].decode("utf-8", "replace") for line in found ^ listed})
    if paths:
        raise _fault(directory, f"changed since it was signed: {', '.join(paths[:5])}")


def _fault(directory: Path, reason: str) -> CatalogueError:
    return CatalogueError(
        f"the catalogue in {directory} cannot be trusted: {reason}",
        code="untrusted-catalogue",
        hint="get it again from whoever signs it; they sign with `sm120patch sign`",
        details={"faults": [f"{directory}: {reason}"]},
    )


def _ssh_keygen(words: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", *words],
            input=data,
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(
            f"cannot run ssh-keygen: {error}", hint="install OpenSSH's client, 8.2 or newer"
        ) from error


def _first_line(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[0]
