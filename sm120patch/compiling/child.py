"""Has FlashInfer compile one module, inside the target's interpreter.

Runs as `EXE -c <this text> package.module:function`, so it imports nothing of ours. FlashInfer
itself writes the build file, takes its lock and runs ninja, into its own cache.
"""

from __future__ import annotations

import importlib
import json
import sys

BEGIN = "<<<sm120patch "
END = " sm120patch>>>"


def main() -> None:
    """Describe the module, then build it; ninja's words go to stdout."""
    holder, _, function = sys.argv[1].partition(":")
    spec = getattr(importlib.import_module(holder), function)()
    found = {"name": spec.name, "directory": str(spec.build_dir), "aot": bool(spec.is_aot)}
    sys.stdout.write(f"{BEGIN}{json.dumps(found)}{END}\n")
    sys.stdout.flush()
    spec.build(verbose=True)


if __name__ == "__main__":
    main()
