"""Write docs/releases.md: what every set means for every known release, by the planner itself.

For maintainers, after the catalogue or the list of releases was edited:

    python tools/releases_document.py

Packages that are not in the wheel cache are downloaded.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from sm120patch import catalogue, published
from sm120patch.cli.releasetext import counts, label, matrix_markdown
from sm120patch.operations.releases import catalogue_digest, chosen_releases, matrix
from sm120patch.plan import Outcome

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "releases.md"
HEADER = """\
# The sets on every release

<!-- written by tools/releases_document.py; catalogue {digest} -->

What `sm120patch plan` decides on each of {count} published SGLang releases with the FlashInfer
that it pins, on freshly installed packages; optional changes as if they were selected.
`patched`: the change is made and its post-conditions hold. `upstream`: the release has it.
`not-needed`: the release has nothing that would need it. `not-applicable`, in the first table a
dash: the set is not for this release, for the reason below its own table. `refused` would mean that
the catalogue is wrong about a release.

`sm120patch matrix` prints the same for any set, release or pair; `sm120patch plan --against` for
an upgrade of your environment.

"""


def say(text: str) -> None:
    """Progress goes to stderr."""
    sys.stderr.write(text + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Write the document; return 1 when a set is refused, which a release must not have."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--wheel-dir", type=Path, default=published.cache_directory(os.environ))
    options = parser.parse_args(arguments)
    loaded = catalogue.load(ROOT)
    releases = chosen_releases((), published.known(ROOT))
    results = []
    for result in matrix(loaded, (), releases, published.Shelf(options.wheel_dir, say)):
        results.append(result)
        say(f"[{len(results)}/{len(releases)}] {label(result.versions)} {result.error}")
        if result.error:
            return 1
    header = HEADER.format(digest=catalogue_digest(loaded), count=len(results))
    DOCUMENT.write_text(header + matrix_markdown(results), encoding="utf-8")
    say(f"{DOCUMENT}: {counts(results)}")
    return 1 if any(s.outcome is Outcome.REFUSED for r in results for s in r.sets) else 0


if __name__ == "__main__":
    raise SystemExit(main())
