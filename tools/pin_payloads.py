"""Write the digests of the payload files into the manifests, or check them with `--check`.

For maintainers, after a payload was edited:

    python tools/pin_payloads.py

A new digest of a payload that was released needs a new `revision` of its set as well; that is
for the author to decide and is not done here.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PIN = re.compile(r'^payload = "(?P<payload>[^"\n]+)"\nsha256 = "(?P<sha256>[^"\n]*)"$', re.M)


def pinned(text: str, patches: Path) -> str:
    """Return the manifest `text` with the digest of every payload brought up to date."""

    def pin(match: re.Match[str]) -> str:
        digest = hashlib.sha256((patches / match["payload"]).read_bytes()).hexdigest()
        return f'payload = "{match["payload"]}"\nsha256 = "{digest}"'

    return _PIN.sub(pin, text)


def main(arguments: list[str] | None = None) -> int:
    """Pin every manifest of the checkout; return 1 when `--check` finds one that is stale."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing, fail when stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="directory with manifests/")
    options = parser.parse_args(arguments)
    stale = []
    for manifest in sorted((options.root / "manifests").glob("*.toml")):
        text = manifest.read_text(encoding="utf-8")
        fresh = pinned(text, options.root / "patches")
        if fresh != text:
            stale.append(manifest.name)
            if not options.check:
                manifest.write_text(fresh, encoding="utf-8")
    word = "stale" if options.check else "pinned"
    sys.stderr.write("".join(f"{word}: {name}\n" for name in stale))
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
