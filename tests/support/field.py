"""A small environment whose packages hold what a test says, and sets that it makes up."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from sm120patch.model import sha256_hex
from sm120patch.unified import make_diff
from tests.support.catalogue import A
from tests.support.environments import install_fake
from tests.support.manifests import head
from tests.support.place import Place

LINES = "".join(f"line_{n} = {n}\n" for n in range(40))
EDITED = LINES.replace("line_20 = 20\n", "line_20 = 'patched'\n")


class Field(Place):
    """`Place` with packages and sets to choose."""

    def ship(self, files: Mapping[str, bytes], version: str = "1.0") -> None:
        """Install a release of sglang with these files, as upstream's."""
        for old in self.site.glob("sglang*"):
            shutil.rmtree(old)
        install_fake(self.site, "sglang", version, {"sglang/__init__.py": b"", **files})
        self.seal()

    def diff_set(
        self,
        name: str,
        before: str = LINES,
        after: str = EDITED,
        *,
        path: str = A,
        diff: bytes | None = None,
        present: str = "'patched'",
        versions: str = ">=1.0,<2.0",
        more: str = "",
    ) -> None:
        """Write a set of one diff from `before` to `after`."""
        data = make_diff(path, before.encode(), after.encode()).encode() if diff is None else diff
        condition = f'present = {{ "{present}" = {after.count(present)} }}'
        self._write(name, path, "diff", f"{name}.patch", data, versions, condition, more)

    def file_set(self, name: str, path: str, data: bytes) -> None:
        """Write a set that adds a file."""
        self._write(name, path, "file", f"{name}.py", data, ">=1.0,<3.0", "", "")

    def _write(
        self,
        name: str,
        path: str,
        kind: str,
        payload: str,
        data: bytes,
        versions: str,
        condition: str,
        more: str,
    ) -> None:
        (self.catalogue / "patches" / name).mkdir(parents=True, exist_ok=True)
        (self.catalogue / "patches" / name / payload).write_bytes(data)
        target = "sglang" if path.startswith("sglang/") else "flashinfer-python"
        (self.catalogue / "manifests" / f"{name}.toml").write_text(f"""{head(name)}
{more}
[[change]]
id = "edit"
target = "{target}"
summary = "Change {path}"
description = "For tests."
[[change.variant]]
versions = "{versions}"
kind = "{kind}"
path = "{path}"
payload = "{name}/{payload}"
sha256 = "{sha256_hex(data)}"
{condition}
""")

    def refuse(self, *arguments: str | Path, code: int = 5) -> str:
        """Run a command that must be refused without a trace; return what it said."""
        ran = self.run(*arguments)
        assert ran.code == code, ran.out + ran.err
        self.assert_nothing_written()
        message: str = ran.error["message"]
        return message
