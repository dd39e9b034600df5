"""Every reader of foreign bytes as a function that must return: for hypothesis and for atheris."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import unicodedata
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

from sm120patch import diffparse, disk
from sm120patch.caches.ninja import read_build_file, read_deps_log
from sm120patch.environment.records import read_record, safe_relative
from sm120patch.errors import CatalogueError, ConflictError, RecoveryNeededError, Sm120PatchError
from sm120patch.evidence import Event
from sm120patch.fleet.answers import fleet_dict
from sm120patch.fleet.compare import compare
from sm120patch.fleet.expected import inventory_of, names_of
from sm120patch.fleet.overview import overview
from sm120patch.fleet.parsing import Reading
from sm120patch.fleet.parsing import parse as parse_facts
from sm120patch.fleet.tables import comparison_text, fleet_text
from sm120patch.host import nvml
from sm120patch.journal import read_journal
from sm120patch.ledger import open_ledger, read_ledger
from sm120patch.manifest import examine, parse
from sm120patch.model import Changed, Refused, Unchanged
from sm120patch.plaintext import clean, table
from sm120patch.plan import ActiveSet, History, OwnedFile, Role
from sm120patch.unified import apply, faults, make_diff
from sm120patch.verify.profile import parse as parse_profile
from tests.support.catalogue import A_TEXT, A, write_catalogue
from tests.support.facts import small

Target = Callable[[bytes], None]


def manifest(data: bytes) -> None:
    patch_set, found = examine(data, lambda _path: data)
    assert (patch_set is None) == bool(found)
    assert all(isinstance(fault, str) for fault in found)
    try:
        parse(data, "fuzz.toml", lambda _path: data)
    except CatalogueError as error:
        assert error.details["faults"]


def diff(data: bytes) -> None:
    assert all(isinstance(fault, str) for fault in faults(data))
    for reverse in (False, True):
        result = apply(data, A, A_TEXT.encode(), reverse=reverse)
        assert isinstance(result, Changed | Unchanged | Refused)
    read, _found = diffparse.read(data)
    assert read is None or safe_relative(read.path)


def record(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "RECORD"
        path.write_bytes(data)
        assert all(safe_relative(name) for name in read_record(path).entries)
        read_record(path, ["sglang/a.py"])


def journal(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "journal.json"
        path.write_bytes(data)
        try:
            found = read_journal(path)
        except RecoveryNeededError as error:
            assert error.hint
            return
        for entry in found.files if found is not None else ():
            contained(scratch, entry.path)


def contained(root: str, path: str) -> None:
    """A path from outside leads below the root, or nowhere."""
    try:
        with disk.spot(root, path) as place:
            inside = os.path.realpath(f"/proc/self/fd/{place.directory}")
            assert (inside + "/").startswith(os.path.realpath(root) + "/"), path
            assert "/" not in place.name and place.name not in ("", ".", "..")
    except (ConflictError, OSError, ValueError):
        return


def path(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        (root / "pkg").mkdir(parents=True)
        (root / "pkg" / "out").symlink_to(scratch)
        contained(str(root), data.decode("utf-8", "surrogateescape"))
        contained(str(root), "pkg/out/" + data.decode("utf-8", "replace"))


def ledger(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "ledger.sqlite3"
        file.write_bytes(data)
        try:
            with read_ledger(file) as found:
                assert found is not None
                found.history(), found.events(), found.evidence("x"), found.contents()
                found.committed("tx")
        except Sm120PatchError as error:
            assert error.hint


def profile(data: bytes) -> None:
    try:
        text = data.decode("utf-8", "replace")
        parse_profile(text, origin="fuzz.toml", python="/bin/python", prefix="/opt")
    except Sm120PatchError as error:
        assert error.message


def ninja(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("build.ninja", ".ninja_deps"):
            (Path(scratch) / name).write_bytes(data)
        read_build_file(Path(scratch) / "build.ninja")
        read_deps_log(Path(scratch) / ".ninja_deps")


def terminal(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for shown in (clean(text), table([(text, text), ("a", "b")])):
        bad = [c for c in shown if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"]
        assert bad == [], repr(shown)


def driver(data: bytes) -> None:
    """A driver whose strings are whatever they like."""

    class SickError(Exception):
        pass

    def answer(name: str) -> Callable[..., object]:
        def reply(*_arguments: object) -> object:
            if name.endswith(("Count", "HandleByIndex")):
                return 2
            if name.endswith("Capability"):
                return 12, 0
            if "PciInfo" in name:
                return SimpleNamespace(busId=data)
            if name.endswith(("Name", "UUID", "DriverVersion")):
                return data
            raise SickError(data)

        return reply

    class Library:
        NVMLError = SickError

        def __getattr__(self, name: str) -> Callable[..., object]:
            return answer(name)

    found = nvml._inventory(Library())
    assert "\x1b" not in json.dumps(found)
    for gpu in found["gpus"]:
        terminal(gpu["name"].encode("utf-8", "surrogateescape"))


def facts(data: bytes) -> None:
    """Facts of a node: known only where they say enough, and shown without a way out."""
    how = Reading(datetime(2026, 11, 30, tzinfo=timezone.utc), timedelta(days=1), deep=True)
    node = parse_facts(data, "n.json", "gpu-01", how)
    names_of(data), inventory_of(data)
    fleet = overview([node])
    assert bool(node.unknown) == bool(fleet.unknown)
    assert len(json.dumps(fleet_dict(fleet))) < 1 << 20
    terminal(fleet_text(fleet, how.now).encode("utf-8", "surrogateescape"))
    terminal(comparison_text(compare(node, node)).encode("utf-8", "surrogateescape"))


TARGETS: dict[str, Target] = {
    "diff": diff,
    "driver": driver,
    "facts": facts,
    "journal": journal,
    "ledger": ledger,
    "manifest": manifest,
    "ninja": ninja,
    "path": path,
    "profile": profile,
    "record": record,
    "terminal": terminal,
}


def seeds(name: str) -> list[bytes]:
    """Good input to begin from: damage near the truth goes deepest."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        if name == "manifest":
            made = write_catalogue(root)
            return [p.read_bytes() for p in sorted((made / "manifests").iterdir())]
        if name == "ledger":
            return [_ledger(root / "ledger.sqlite3")]
    text = make_diff(A, A_TEXT.encode(), A_TEXT.replace("line_3 = 3\n", "x\ny\n").encode())
    known: dict[str, list[bytes]] = {
        "diff": [text.encode(), text.replace("\n", "\r\n").encode()],
        "record": [b"sglang/a.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\nx,,\n"],
        "journal": [JOURNAL.encode()],
        "profile": [b'[server]\nkind = "real"\ncommand = ["a", "{set_args}"]\n[workload.x]\n'],
        "ninja": [b"# ninjadeps\n\x04\0\0\0", b"rule r\n command = c $in\nbuild a.o: r b.cu | c\n"],
        "path": [b"pkg/a.py", b"../x", b"/etc/passwd", b"pkg/out/x", b"a\0b"],
        "terminal": [b"\x1b]0;title\x07\x1b[2Jname", "\u202eevil\u200b\x9b31m".encode()],
        "facts": [json.dumps(small(now=datetime(2026, 11, 30, tzinfo=timezone.utc))).encode()],
        "driver": [b"NVIDIA RTX PRO 6000 Blackwell", b"\x1b[31m\xff\xfe"],
    }
    return known[name]


JOURNAL = json.dumps(
    {
        "schema": 1, "tx": "t", "command": "apply", "sets": ["one"], "plan_digest": "d",
        "python": "p", "restore": "a", "at": "a", "moving_to": "b", "pycache_prefix": None,
        "caches": None, "pid": 1, "started": "now",
        "files": [{
            "target": "sglang", "root": "/x", "path": "pkg/a.py", "a_sha256": "0" * 64,
            "a_mtime_ns": 1, "b_sha256": "1" * 64, "b_mtime_ns": 2, "a_mode": 420, "b_mode": 420,
        }],
    }
)  # fmt: skip


def _ledger(place: Path) -> bytes:
    owned = OwnedFile("sglang", A, "/x", "1.0", "0" * 64, 420, 1, "1" * 64, ("one/first",))
    active = ActiveSet("one", 1, Role.REQUESTED, (), "d")
    with open_ledger(place) as made:
        made.commit(Event("staged", ("one",), {"end": "b"}, "tx"), History({"one": active},
                    {("sglang", A): owned}))  # fmt: skip
    with sqlite3.connect(place) as connection:
        connection.execute("PRAGMA user_version")
    connection.close()
    return place.read_bytes()
