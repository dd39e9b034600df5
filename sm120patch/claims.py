"""Claims on shared editable checkouts: which environment's ledger owns the patched files.

Writes one small file in the checkout's git directory, where `git status` does not see it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from sm120patch.disk import read_file, remove_file, sweep, write_file
from sm120patch.environment import Checkout, Environment
from sm120patch.errors import BusyError, ConflictError, HostError, Sm120PatchError
from sm120patch.ledger import read_ledger
from sm120patch.plan import History
from sm120patch.store import StateDirectory

CLAIM_NAME = "sm120patch-claim.json"
LOCK_NAME = "sm120patch-claim.lock"
_MAX_BYTES = 16 << 20


def _claim_files(environment: Environment) -> dict[str, Path]:
    found = {}
    for name, installation in environment.installations.items():
        if installation.kind != "editable":
            continue
        checkout = installation.checkout()
        if isinstance(checkout, Checkout):
            found[name] = checkout.git_dir / CLAIM_NAME
    return found


def _owner(path: Path) -> str | None:
    """Prefix that a claim names; None for what is no claim: others may write that directory."""
    try:
        data = json.loads(read_file(path, _MAX_BYTES))
        owner = data.get("prefix") if isinstance(data, dict) else None
        return owner if isinstance(owner, str) and b"\0" not in os.fsencode(owner) else None
    except (OSError, ValueError, RecursionError):
        return None


def _is_ours(owner: str | None, environment: Environment) -> bool:
    """One prefix may be spelled in several ways: through a link, with and without a mount."""
    return owner is not None and os.path.realpath(owner) == os.path.realpath(environment.prefix)


@contextlib.contextmanager
def checkouts_held(environment: Environment) -> Iterator[None]:
    """Keep every other environment from changing the same checkouts meanwhile.

    The lock of a prefix is of no use between two prefixes. BusyError at once when another
    environment is at it, HostError when the git directory cannot be written.
    """
    with contextlib.ExitStack() as held:
        for name, path in sorted(_claim_files(environment).items()):
            held.enter_context(_checkout_lock(name, path.with_name(LOCK_NAME)))
        yield


@contextlib.contextmanager
def _checkout_lock(name: str, path: Path) -> Iterator[None]:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise HostError(
            f"the checkout of {name} cannot be locked: {path}: {error.strerror}",
            hint="run as the owner of the checkout, or make its git directory writable",
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another environment is changing the checkout of {name} ({path.parent})",
                hint="wait until it has finished, then run the command again",
            ) from None
        sweep(path.parent)
        yield
    finally:
        os.close(fd)


def refuse_foreign_claims(environment: Environment) -> None:
    """Raise ConflictError when another environment has patched a checkout that we import."""
    claimed = foreign_claims(environment)
    if claimed:
        raise ConflictError(
            "; ".join(claimed),
            code="claimed",
            hint="patch it from the environment that owns the claim, or revert there first",
        )


def foreign_claims(environment: Environment) -> list[str]:
    """Say which checkouts another, still existing environment has patched."""
    return [
        f"the checkout of {name} is patched and owned by {owner}"
        for name, owner in _foreign_owners(environment).items()
    ]


def claimed_files(environment: Environment) -> dict[tuple[str, str], tuple[str, str]]:
    """(target, path) -> sha256 and owning prefix of what other environments' ledgers wrote.

    A ledger that cannot be read answers for nothing.
    """
    found = {}
    for name, owner in _foreign_owners(environment).items():
        with contextlib.suppress(Sm120PatchError):
            with read_ledger(_ledger(owner)) as ledger:
                files = {} if ledger is None else ledger.history().files
            found.update({k: (f.current_sha256, owner) for k, f in files.items() if k[0] == name})
    return found


def _foreign_owners(environment: Environment) -> dict[str, str]:
    """Target -> prefix of another environment that has patched its checkout and still exists."""
    owners = {name: _owner(path) for name, path in sorted(_claim_files(environment).items())}
    return {
        name: owner
        for name, owner in owners.items()
        if owner is not None and not _is_ours(owner, environment) and _is_there(owner)
    }


def _is_there(owner: str) -> bool:
    """Tell whether an environment still exists; one that we may not look at counts as there."""
    try:
        return _ledger(owner).exists()
    except OSError as error:
        return isinstance(error, PermissionError)


def _ledger(prefix: str) -> Path:
    return StateDirectory.of(Path(prefix)).ledger


def sync_claims(environment: Environment, history: History) -> None:
    """Write the claim where we own files of a checkout, remove our own where we do not."""
    for name, path in _claim_files(environment).items():
        digests = sorted(f.current_sha256 for f in history.files.values() if f.target == name)
        owner = _owner(path)
        if digests:
            claim = {"prefix": str(environment.prefix), "files": digests}
            write_file(path, json.dumps(claim, sort_keys=True).encode())
        elif _is_ours(owner, environment):
            remove_file(path)
