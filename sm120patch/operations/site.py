"""Open one environment: who imports what, the catalogue, and the ledger under its prefix.

Reads disk and asks the target's interpreter; writes nothing.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sm120patch import catalogue as catalogues
from sm120patch.catalogue import Catalogue, Places
from sm120patch.environment import Environment, discover, locate, start
from sm120patch.errors import CatalogueError
from sm120patch.journal import Journal, read_journal
from sm120patch.ledger import read_ledger
from sm120patch.ownership import refuse_strangers
from sm120patch.plan import History
from sm120patch.store import StateDirectory, Store


class Site(NamedTuple):
    """One environment with everything the commands need to know about it."""

    environment: Environment
    catalogue: Catalogue
    state: StateDirectory
    catalogue_fault: CatalogueError | None = None
    """Why `catalogue` is empty, where a command can do without one."""

    @property
    def store(self) -> Store:
        """Contents kept under the prefix."""
        return Store(self.state)

    @property
    def versions(self) -> dict[str, str]:
        """Target -> installed version."""
        return {name: i.version for name, i in self.environment.installations.items()}

    def history(self) -> History:
        """What the ledger says is on disk; empty without a ledger."""
        with read_ledger(self.state.ledger) as ledger:
            return History() if ledger is None else ledger.history()

    def journal(self) -> Journal | None:
        """The transaction under way or interrupted, if any."""
        return read_journal(self.state.journal)


def open_site(
    env: str | None,
    python: str | None,
    *,
    catalogue: Path | Places | None = None,
    environ: Mapping[str, str] | None = None,
    tolerant: bool = False,
) -> Site:
    """Find the environment that `--env`, `--python` or the active environment names.

    `tolerant`: a broken catalogue is noted instead of raised. What is on disk can be looked at,
    recovered and taken off with the ledger alone.
    """
    variables = os.environ if environ is None else environ
    interpreter = locate(env, python, variables)
    refuse_strangers([interpreter], variables)
    # The other interpreter takes its time to start; the catalogue is read meanwhile.
    asked = start(interpreter)
    loaded: Catalogue | CatalogueError
    try:
        loaded = catalogues.load(catalogue)
    except CatalogueError as error:
        loaded = error
    except BaseException:
        asked.close()
        raise
    environment = discover(interpreter, variables, asked)
    roots = [i.root / i.package for i in environment.installations.values()]
    refuse_strangers([environment.prefix, *roots], variables)
    state = StateDirectory.of(environment.prefix)
    if isinstance(loaded, Catalogue):
        return Site(environment, loaded, state)
    if not tolerant:
        raise loaded
    return Site(environment, Catalogue({}), state, loaded)
