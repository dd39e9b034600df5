"""Claims on shared editable checkouts: which environment's ledger owns the patched files.

Writes one small file in the checkout's git directory, where `git status` does not see it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from sm120patch.disk import remove_file, write_file
from sm120patch.environment import Checkout, Environment
from sm120patch.plan import History

CLAIM_NAME = "sm120patch-claim.json"


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
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    owner = data.get("prefix") if isinstance(data, dict) else None
    return owner if isinstance(owner, str) else None


def _is_ours(owner: str | None, environment: Environment) -> bool:
    """One prefix may be spelled in several ways: through a link, with and without a mount."""
    return owner is not None and os.path.realpath(owner) == os.path.realpath(environment.prefix)


def foreign_claims(environment: Environment) -> list[str]:
    """Say which checkouts another, still existing environment has patched."""
    problems = []
    for name, path in sorted(_claim_files(environment).items()):
        owner = _owner(path)
        if owner is None or _is_ours(owner, environment):
            continue
        if (Path(owner) / ".sm120patch" / "ledger.sqlite3").exists():
            problems.append(f"the checkout of {name} is patched and owned by {owner}")
    return problems


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
