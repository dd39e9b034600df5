from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from sm120patch import catalogue
from sm120patch.catalogue import Catalogue
from sm120patch.errors import CatalogueError, ExitCode, UsageError
from sm120patch.model import (
    Changed,
    PayloadKind,
    Refused,
    Unchanged,
    Variant,
    Window,
    sha256_hex,
)
from sm120patch.unified import make_diff

ROOT = Path(__file__).resolve().parents[2]
HEADER = "flashinfer/data/a.cuh"
BEFORE, AFTER = b"one\ngate\nthree\n", b"one\nopen\nthree\n"
DIFF = make_diff(HEADER, BEFORE, AFTER).encode()
CODEMOD = b"""\
from sm120patch.codemod import Codemod, Function, Site, lists, append

GATE = Function("gate")
CODEMOD = Codemod(
    sites=(Site(GATE, append("majors", "[9, 10]", 12)),),
    after=(lists(GATE, "majors", 12),),
)
"""

Write = Callable[..., Path]


def manifest_text(set_id: str, body: str = "", *, depends: str = "[]", extra: str = "") -> str:
    return f"""\
schema = 1
{extra}
[patch-set]
id = "{set_id}"
revision = 1
title = "Title"
description = "Text"
type = "unofficial"
[relations]
depends = {depends}
[upstream]
status = "pending"
last-checked = "2026-11-29"
{body}
"""


def change(set_id: str, *, payload: bytes = DIFF, name: str = "a.patch", more: str = "") -> str:
    return f"""\
[[change]]
id = "header"
target = "flashinfer-python"
summary = "Summary"
description = "Description"
[[change.variant]]
versions = ">=0.6,<0.7"
kind = "diff"
path = "{HEADER}"
payload = "{set_id}/{name}"
sha256 = "{sha256_hex(payload)}"
present = {{ "open" = 1 }}
absent = ["gate"]
{more}
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Lay down a catalogue directory: manifests by name, payloads by path."""

    def make(manifests: dict[str, str], payloads: dict[str, bytes] | None = None) -> Path:
        (tmp_path / "manifests").mkdir(exist_ok=True)
        for name, text in manifests.items():
            (tmp_path / "manifests" / f"{name}.toml").write_text(text, encoding="utf-8")
            (tmp_path / "patches" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "patches" / name / "a.patch").write_bytes(DIFF)
        for path, data in (payloads or {}).items():
            (tmp_path / "patches" / path).write_bytes(data)
        return tmp_path

    return make


def plain(set_id: str, depends: str = "[]") -> str:
    return manifest_text(set_id, change(set_id), depends=depends)


def faults(directory: Path) -> list[str]:
    with pytest.raises(CatalogueError) as caught:
        catalogue.load(directory)
    listed = caught.value.details["faults"]
    assert isinstance(listed, list)
    return listed


# --- loading -----------------------------------------------------------------------------------


def test_sets_are_found_by_name(write: Write) -> None:
    known = catalogue.load(write({"b": plain("b"), "a": plain("a")}))
    assert known.ids == ("a", "b")
    assert known.get("a").title == "Title"


def test_an_unknown_name_is_a_usage_error_that_offers_close_ones(write: Write) -> None:
    known = catalogue.load(write({"allreduce-fusion": plain("allreduce-fusion")}))
    with pytest.raises(UsageError) as caught:
        known.get("all-reduce-fusion")
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.hint == "did you mean allreduce-fusion?"
    with pytest.raises(UsageError, match="known: allreduce-fusion"):
        known.get("xyz")


def test_dependencies_come_first_and_once(write: Write) -> None:
    known = catalogue.load(
        write({
            "top": plain("top", '["left", "right"]'),
            "left": plain("left", '["base"]'),
            "right": plain("right", '["base"]'),
            "base": plain("base"),
        })
    )  # fmt: skip
    assert known.closure(["top"]) == ("base", "left", "right", "top")
    assert known.closure(["right", "top"]) == ("base", "right", "left", "top")
    assert known.closure([]) == ()


def test_faults_of_all_manifests_are_listed_with_their_file(write: Write) -> None:
    broken = plain("a").replace("revision = 1", "")
    listed = faults(write({"a": broken, "b": plain("x"), "c": "[", "d": plain("d")}))
    assert listed[0] == "a.toml: patch-set.revision: is missing"
    assert any(f.startswith("b.toml: change[0].variant[0].payload: x/a.patch") for f in listed)
    assert any(f.startswith("c.toml: not TOML") for f in listed)
    assert not any(f.startswith("d.toml") for f in listed)


def test_a_file_is_named_like_its_set(write: Write) -> None:
    directory = write({"a": plain("a")})
    (directory / "manifests" / "a.toml").rename(directory / "manifests" / "z.toml")
    assert faults(directory) == ["z.toml: patch-set.id: 'a' is not the name of the file"]


def test_relations_name_known_sets(write: Write) -> None:
    text = plain("a", '["none"]').replace("[upstream]", 'conflicts = ["nil"]\n[upstream]')
    assert faults(write({"a": text})) == [
        "a.toml: relations.depends: no set is named 'none'",
        "a.toml: relations.conflicts: no set is named 'nil'",
    ]


def test_cycles_are_faults_of_every_set_in_them(write: Write) -> None:
    sets = {"a": plain("a", '["b"]'), "b": plain("b", '["c"]'), "c": plain("c", '["b"]')}
    assert faults(write(sets)) == [
        "b.toml: relations.depends: 'b' depends on itself in the end",
        "c.toml: relations.depends: 'c' depends on itself in the end",
    ]


def test_a_set_cannot_conflict_with_what_it_needs(write: Write) -> None:
    text = plain("a", '["b"]').replace("[upstream]", 'conflicts = ["b"]\n[upstream]')
    assert faults(write({"a": text, "b": plain("b")})) == [
        "a.toml: relations.conflicts: 'b' is needed as well"
    ]


def test_payloads_are_not_read_through_links_out_of_the_catalogue(
    write: Write, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.patch"
    secret.write_bytes(DIFF)
    directory = write({"a": plain("a")})
    (directory / "patches" / "a" / "a.patch").unlink()
    (directory / "patches" / "a" / "a.patch").symlink_to(secret)
    assert "it leads out of" in faults(directory)[0]


def test_a_huge_payload_is_not_read(write: Write) -> None:
    directory = write({"a": plain("a")}, {"a/a.patch": b"x" * (catalogue.MAX_PAYLOAD + 1)})
    assert "more than" in faults(directory)[0]


def test_a_directory_without_manifests_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="no manifests in") as caught:
        catalogue.load(tmp_path)
    assert caught.value.hint


def test_a_bundle_takes_over_what_its_members_say(write: Write) -> None:
    running = """
[[launch]]
target = "sglang"
versions = ">=0.5.8"
args = ["--fast"]
strip = { "--fast" = 0 }
[[engagement]]
target = "sglang"
versions = ">=0.5.8"
log = "engaged"
[[known-result]]
topology = "t"
effect = "e"
source = "s"
"""
    member = manifest_text("member", change("member") + running)
    bundle = manifest_text("bundle", depends='["member"]')
    known = catalogue.load(write({"member": member, "bundle": bundle, "other": plain("other")}))
    taken = known.get("bundle")
    assert catalogue.launch_for(taken, {"sglang": "0.5.9"}).args == ("--fast",)
    assert catalogue.engagement_for(taken, {"sglang": "0.5.9"})[0].log == "engaged"
    assert taken.known_results == known.get("member").known_results
    assert known.get("other").launch == ()


# --- choice ------------------------------------------------------------------------------------


@pytest.fixture
def ranged(write: Write) -> Catalogue:
    more = """
requires = { sglang = ">=0.5.8,<0.5.19" }
[[change.window]]
versions = ">=0.7,<0.8"
outcome = "upstream"
reason = "there since 0.7"
[[change.window]]
versions = ">=0.1,<0.2"
outcome = "not-applicable"
reason = "the kernels are missing"
"""
    return catalogue.load(write({"a": manifest_text("a", change("a", more=more))}))


@pytest.mark.parametrize(
    ("flashinfer", "sglang", "kind", "reason"),
    [
        ("0.6.3", "0.5.9", Variant, "flashinfer-python 0.6.3"),
        ("0.6.3+cu130", "0.5.10rc0", Variant, "flashinfer-python 0.6.3+cu130"),
        ("0.6.3", "0.5.19", type(None), "needs sglang >=0.5.8,<0.5.19, found 0.5.19"),
        ("0.6.3", None, type(None), "needs sglang >=0.5.8,<0.5.19, found none"),
        ("0.7.2", "0.5.23", Window, "there since 0.7"),
        ("0.1.6", "0.5.9", type(None), "the kernels are missing"),
        ("0.5.3", "0.5.9", type(None), "nothing is known about flashinfer-python 0.5.3"),
        ("0.7rc1", "0.5.9", type(None), "nothing is known about flashinfer-python 0.7rc1"),
        ("0.0.0+unknown", "0.5.9", type(None), "it is for >=0.6,<0.7"),
        ("not a version", "0.5.9", type(None), "which cannot be compared"),
        (None, "0.5.9", type(None), "flashinfer-python is not installed"),
    ],
)
def test_versions_choose_a_variant_a_window_or_nothing_with_a_reason(
    ranged: Catalogue, flashinfer: str | None, sglang: str | None, kind: type, reason: str
) -> None:
    pair = {"flashinfer-python": flashinfer, "sglang": sglang}
    installed = {name: version for name, version in pair.items() if version is not None}
    found, why = catalogue.choose(ranged.get("a").changes[0], installed)
    assert isinstance(found, kind)
    assert reason in why


# --- edit --------------------------------------------------------------------------------------


def diff_variant(**fields: object) -> Variant:
    values: dict[str, object] = {
        "versions": ">=0.6", "kind": PayloadKind.DIFF, "path": HEADER, "payload": "a/a.patch",
        "sha256": sha256_hex(DIFF), "data": DIFF, "present": {"open": 1}, "absent": ("gate",),
    }  # fmt: skip
    return Variant(**{**values, **fields})


def test_a_diff_is_applied_and_its_post_conditions_checked() -> None:
    assert catalogue.edit(diff_variant(), BEFORE) == Changed(AFTER, 1)
    assert catalogue.satisfied(diff_variant(), AFTER)
    assert not catalogue.satisfied(diff_variant(), BEFORE)


def test_content_that_meets_the_post_conditions_is_left_alone() -> None:
    """Upstream may have made the change in other words, on which the diff does not fit."""
    assert isinstance(catalogue.edit(diff_variant(), b"rewritten\nopen\n"), Unchanged)
    assert isinstance(catalogue.edit(diff_variant(), AFTER), Unchanged)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (BEFORE + b"open\n", "after the diff 'open' occurs 2 times, not 1"),
        (BEFORE + b"gate 2\n", "after the diff 'gate' still occurs 1 times"),
        (BEFORE.replace(b"three", b"3"), "was not found"),
    ],
)
def test_a_result_that_misses_a_post_condition_is_refused(data: bytes, reason: str) -> None:
    result = catalogue.edit(diff_variant(), data)
    assert isinstance(result, Refused)
    assert reason in result.reason


def test_a_codemod_is_run_by_its_engine() -> None:
    variant = diff_variant(
        kind=PayloadKind.CODEMOD, path="flashinfer/a.py", payload="a/a.py", data=CODEMOD,
        present={}, absent=(),
    )  # fmt: skip
    before = b"def gate():\n    return build(majors=[9, 10])\n"
    after = before.replace(b"[9, 10]", b"[9, 10, 12]")
    assert catalogue.edit(variant, before) == Changed(after, 1)
    assert isinstance(catalogue.edit(variant, after), Unchanged)
    assert catalogue.satisfied(variant, after)


# --- what is shipped ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return catalogue.load()


@pytest.fixture(scope="module")
def pin_payloads() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pin_payloads", ROOT / "tools/pin_payloads.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shipped_catalogue_is_whole(shipped: Catalogue) -> None:
    assert set(shipped.ids) >= {"allreduce-arch-gate", "allreduce-fusion", "sm120-checks"}
    assert catalogue.lint(shipped) == []


def test_the_shipped_manifests_are_pinned(pin_payloads: ModuleType) -> None:
    assert pin_payloads.main(["--check"]) == 0


def test_a_stale_pin_is_noticed_and_mended(
    write: Write, pin_payloads: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write({"a": plain("a")}, {"a/a.patch": DIFF + b"\n"})
    assert pin_payloads.main(["--check", "--root", str(directory)]) == 1
    assert capsys.readouterr().err == "stale: a.toml\n"
    assert pin_payloads.main(["--root", str(directory)]) == 0
    assert pin_payloads.main(["--check", "--root", str(directory)]) == 0
    assert catalogue.load(directory).ids == ("a",)


def test_every_payload_file_is_used(shipped: Catalogue) -> None:
    used = {v.payload for s in shipped.sets.values() for c in s.changes for v in c.variants}
    files = (ROOT / "patches").rglob("*")
    there = {
        f.relative_to(ROOT / "patches").as_posix()
        for f in files
        if f.is_file() and not any(part.startswith((".", "__")) for part in f.parts)
    }
    assert there == used


def test_loading_imports_no_engine() -> None:
    code = (
        "import sys; from sm120patch import catalogue; catalogue.load();"
        "print([m for m in ('libcst', 'unidiff', 'git', 'aiohttp', 'psutil', 'pynvml', 'click')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


FLASHINFER_SIDE = {"jit-arch-list", "header-gates"}
PAIRS = [
    ("0.5.0rc0", "0.2.10", FLASHINFER_SIDE | {"capability-helper", "runtime-gate"}),
    ("0.5.1.post3", "0.2.14.post1", {"header-gates", "capability-helper", "runtime-gate"}),
    ("0.5.3", "0.4.0rc3", FLASHINFER_SIDE | {"capability-helper", "runtime-gate"}),
    ("0.5.4", "0.4.1", FLASHINFER_SIDE | {"runtime-gate"}),
    ("0.5.7", "0.5.3", FLASHINFER_SIDE | {"runtime-gate"}),
    ("0.5.8", "0.6.1", FLASHINFER_SIDE | {"multicast-optional", "runtime-gate"}),
    ("0.5.8.post1", "0.6.1", FLASHINFER_SIDE | {"multicast-optional", "runtime-gate"}),
    ("0.5.9", "0.6.3", FLASHINFER_SIDE | {"multicast-optional", "runtime-gate"}),
    ("0.5.10rc0", "0.6.6", FLASHINFER_SIDE | {"multicast-optional", "runtime-gate"}),
    ("0.5.10.post1", "0.6.7.post3", FLASHINFER_SIDE | {"multicast-optional", "runtime-gate"}),
    (
        "0.5.11",
        "0.6.8.post1",
        FLASHINFER_SIDE | {"multicast-optional", "runtime-gate", "preflight"},
    ),
    ("0.5.12.post1", "0.6.11.post1", FLASHINFER_SIDE | {"runtime-gate", "preflight"}),
    ("0.5.13.post1", "0.6.12", FLASHINFER_SIDE | {"runtime-gate", "preflight"}),
    ("0.5.14", "0.6.12", FLASHINFER_SIDE | {"runtime-gate", "preflight", "resolver"}),
    ("0.5.17", "0.6.15.post1", FLASHINFER_SIDE | {"runtime-gate", "preflight", "resolver"}),
    ("0.5.18", "0.6.17", {"runtime-gate", "preflight", "resolver"}),
    ("0.5.21", "0.6.18", {"runtime-gate", "preflight", "resolver"}),
    ("0.5.23", "0.7.2", {"runtime-gate", "preflight", "resolver"}),
]
"""SGLang, the FlashInfer it pins, and the gates that keep SM120 off in that pair."""


@pytest.mark.parametrize(("sglang", "flashinfer", "gates"), PAIRS)
def test_each_pair_gets_the_changes_it_needs(
    shipped: Catalogue, sglang: str, flashinfer: str, gates: set[str]
) -> None:
    installed = {"sglang": sglang, "flashinfer-python": flashinfer}
    members = [shipped.get(name) for name in shipped.closure(["allreduce-fusion"])]
    chosen = {c.id: catalogue.choose(c, installed)[0] for s in members for c in s.changes}
    optional = {c.id for s in members for c in s.changes if c.optional}
    assert optional == {"auto-enable", "cluster-clamp"}
    patched = {name for name, found in chosen.items() if isinstance(found, Variant)}
    assert patched - optional == gates
    assert None not in chosen.values()


FLAG = ("--enable-flashinfer-allreduce-fusion",)
BACKEND = ("--flashinfer-allreduce-fusion-backend", "trtllm")


@pytest.mark.parametrize(
    ("sglang", "args", "info"),
    [
        ("0.5.0rc0", FLAG, "enable_flashinfer_allreduce_fusion"),
        ("0.5.8", FLAG, "enable_flashinfer_allreduce_fusion"),
        ("0.5.10rc0", FLAG, "enable_flashinfer_allreduce_fusion"),
        ("0.5.13.post1", FLAG, "enable_flashinfer_allreduce_fusion"),
        ("0.5.14", BACKEND, "flashinfer_allreduce_fusion_backend"),
        ("0.5.18", BACKEND, "flashinfer_allreduce_fusion_backend"),
        ("0.5.23", BACKEND, "flashinfer_allreduce_fusion_backend"),
    ],
)
@pytest.mark.parametrize("name", ["allreduce-fusion", "sm120-checks"])
def test_the_option_follows_the_version_and_both_spellings_are_stripped(
    shipped: Catalogue, name: str, sglang: str, args: tuple[str, ...], info: str
) -> None:
    installed = {"sglang": sglang, "flashinfer-python": "0.6.12"}
    launch = catalogue.launch_for(shipped.get(name), installed)
    assert launch.args == args
    assert dict(launch.strip) == {
        "--enable-flashinfer-allreduce-fusion": 0,
        "--flashinfer-allreduce-fusion-backend": 1,
        "--enforce-disable-flashinfer-allreduce-fusion": 0,
    }
    probes = catalogue.engagement_for(shipped.get(name), installed)
    assert [list(p.server_info) for p in probes if p.target == "sglang"] == [[info]]


def test_known_harmful_topologies_are_on_what_users_name(shipped: Catalogue) -> None:
    known = shipped.get("allreduce-fusion").known_results
    assert any(result.harmful for result in known)
    assert all(result.source for result in known)


@pytest.mark.parametrize("data", [True, False])
def test_an_installed_copy_brings_its_own_catalogue(tmp_path: Path, data: bool) -> None:
    package = tmp_path / "sm120patch"
    caches = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(ROOT / "sm120patch", package, ignore=caches)
    if data:
        for name in ("manifests", "patches"):
            shutil.copytree(ROOT / name, package / "_data" / name, ignore=caches)
    code = (
        "from sm120patch import catalogue, errors\n"
        "try: print(*catalogue.load().ids)\n"
        "except errors.CatalogueError as error: print(error, error.hint)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    if data:
        assert "allreduce-fusion" in done.stdout.split()
    else:
        assert "the catalogue is missing" in done.stdout
        assert "reinstall sm120patch" in done.stdout
