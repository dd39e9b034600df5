"""Fuzz one reader of foreign bytes with coverage: the long run beside the property tests.

    python tools/fuzz.py manifest -max_total_time=600

Needs atheris, of the development extra. The readers are those of tests/support/hostile.py; an
exception that escapes is a bug. Seeds are kept in .fuzz/READER, or in a directory that is named
after the reader; atheris leaves there what it has learned.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    """Run atheris on the reader that the first argument names."""
    import atheris

    with atheris.instrument_imports(include=["sm120patch"]):
        from tests.support.hostile import TARGETS, seeds
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in TARGETS:
        sys.exit(f"usage: python tools/fuzz.py {'|'.join(TARGETS)} [DIRECTORY] [libFuzzer options]")
    named = [word for word in sys.argv[2:3] if not word.startswith("-")]
    corpus = Path(named[0]) if named else ROOT / ".fuzz" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = sys.argv[2 + len(named) :]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
