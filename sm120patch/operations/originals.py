"""What files of the ledger held before, where RECORD or HEAD have taken over our content.

Reads the store only.
"""

from collections.abc import Callable

from sm120patch.model import ABSENT, Snapshot
from sm120patch.plan import History


def with_originals(
    snapshot: Snapshot, history: History, originals: Callable[[str], bytes | None]
) -> Snapshot:
    """Take the ledger's word for what a file held where HEAD or RECORD have taken over our content.

    Somebody has committed the patched file, or rewritten RECORD: by that alone it would be
    upstream's, and a revert would leave it and forget it.
    """
    targets = dict(snapshot.targets)
    for (target, path), owned in history.files.items():
        found = targets.get(target)
        file = found.files.get(path) if found is not None else None
        if found is None or file is None or file.pristine_sha256 != owned.current_sha256:
            continue
        if found.version != owned.version or owned.pristine_sha256 == owned.current_sha256:
            continue
        added = owned.pristine_sha256 == ABSENT
        data = None if added else originals(owned.pristine_sha256)
        if added or data is not None:
            file = file._replace(pristine_sha256=owned.pristine_sha256, pristine=data)
            targets[target] = found._replace(files={**found.files, path: file})
    return snapshot._replace(targets=targets)
