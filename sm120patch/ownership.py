"""Who besides root may change what a command of root is about to run or write. Reads disk only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sm120patch.errors import HostError, UsageError

VARIABLE = "SM120PATCH_TRUSTED_OWNERS"
"""Users, by name or number and separated by commas, whose files root may run and write."""


def trusted_owners(environ: Mapping[str, str]) -> frozenset[int]:
    """Return the user ids that count as root; UsageError for a name that nobody has."""
    import pwd

    found = {0}
    for word in filter(None, (w.strip() for w in environ.get(VARIABLE, "").split(","))):
        try:
            found.add(int(word) if word.isdigit() else pwd.getpwnam(word).pw_uid)
        except KeyError:
            raise UsageError(
                f"{VARIABLE} names {word!r}, and there is no such user",
                hint="name users of this host, or their numbers",
            ) from None
    return frozenset(found)


def refuse_strangers(paths: Iterable[Path], environ: Mapping[str, str]) -> None:
    """As root, refuse paths that a normal user could exchange under our hands.

    Each path is checked with every directory above it, as it is spelled and as it resolves.
    Nothing is checked for anybody but root: a user can only hurt what is theirs. Raises HostError.
    """
    if os.geteuid() != 0:
        return
    trusted = trusted_owners(environ)
    seen: set[Path] = set()
    for path in paths:
        for place in _chain(path):
            if place in seen:
                continue
            seen.add(place)
            reason, owner = _stranger(place, trusted)
            if reason:
                raise _refusal(place, reason, owner)


def _chain(path: Path) -> Iterator[Path]:
    for spelled in (path.absolute(), Path(os.path.realpath(path))):
        yield spelled
        yield from spelled.parents


def _stranger(place: Path, trusted: frozenset[int]) -> tuple[str, int | None]:
    """Say who may change a place besides the trusted; empty when nobody may."""
    try:
        found = place.lstat()
    except OSError:
        return "", None  # what is not there is looked at again when it is opened
    if found.st_uid not in trusted:
        return f"belongs to {_name(found.st_uid)}", found.st_uid
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return "", None  # in a sticky directory only owners rename and remove
    if found.st_mode & stat.S_IWOTH:
        return "can be written by everybody", None
    if found.st_mode & stat.S_IWGRP and _others_in(found.st_gid, trusted):
        return f"can be written by group {found.st_gid}", None
    return "", None


def _others_in(group: int, trusted: frozenset[int]) -> bool:
    import grp
    import pwd

    if group == 0:
        return False
    try:
        members = grp.getgrgid(group).gr_mem
    except KeyError:
        return True  # a group without a name: nobody knows who is in it
    ids = {entry.pw_uid for entry in pwd.getpwall() if entry.pw_name in members}
    ids |= {entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == group}
    return bool(ids - trusted)


def _name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _refusal(place: Path, reason: str, owner: int | None) -> HostError:
    name = None if owner is None else _name(owner)
    remedy = f"run as that user (sudo -u {name} sm120patch ...)" if owner is not None else ""
    trust = f"or, if root may trust them, set {VARIABLE}={name}" if owner is not None else ""
    hint = ", ".join(filter(None, (remedy, trust))) or f"take the permission away: {place}"
    return HostError(
        f"root does not run or write what a normal user can exchange: {place} {reason}",
        code="untrusted-prefix",
        hint=hint,
        details={"path": str(place), "owner": owner},
    )
