"""A whole host, laid out below a directory: the expected finding for every way people edit."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import audited
from tests.support.audited import ALL, KERNEL, A, AuditedHost, B
from tests.support.command import CHECKOUT, Ran, run

GOLDEN = CHECKOUT / "tests" / "golden" / "audit_host.json"
ONE = {("by-hand", "-", "one"), ("by-hand", "sglang", A)}
BUNDLE = {
    ("by-hand", "-", "bundle"),
    ("by-hand", "sglang", A),
    ("by-hand", "flashinfer-python", KERNEL),
}
EXPECTED: dict[str, set[tuple[str, str, str]]] = {
    "/opt/venv": set(),
    "/opt/nothing": set(),
    "/opt/sed": ONE,
    "/opt/bundle": BUNDLE,
    "/opt/half": {("by-hand", "-", "pair"), ("by-hand", "sglang", A)},
    "/opt/patch": {
        ("foreign", "sglang", A),
        ("added", "sglang", f"{A}.orig"),
        ("added", "sglang", f"{B}.orig"),
        ("added", "sglang", f"{B}.rej"),
    },
    "/opt/script": {("foreign", "sglang", A), ("missing", "sglang", B)},
    "/opt/staged": {("unverified", "-", "one")},
    "/opt/image": {("unverified", "-", "one")},
    "/opt/drifted": {("drifted", "sglang", A)},
    "/opt/lost": {("lost", "sglang", A), ("unverified", "-", "kernel")},
    "/opt/uv-a": {("foreign", "sglang", A), ("shared", "sglang", A)},
    "/opt/uv-b": {("foreign", "sglang", A), ("shared", "sglang", A)},
    "/opt/conda": set(),
    "/opt/conda/envs/serve": {("foreign", "sglang", B), ("shared", "sglang", B)},
    "/opt/editable": ONE | {("added", "sglang", "sglang/mine.py")},
    "/home/ops/.local/share/uv/tools/sglang": set(),
    "/home/ops/.local/share/pipx/venvs/sglang": set(),
    "/home/ops/.local": set(),
    "/usr": set(),
    "/srv/target": set(),
    "/opt/overlay": set(),
    "/opt/carriers": {
        ("carrier", "-", "SITE/sitecustomize.py"),
        ("carrier", "-", "SITE/zz.pth"),
        ("carrier", "sglang", "SITE/plug-1.0.dist-info/entry_points.txt"),
    },
    "/opt/copies": {
        ("copies", "sglang", "/opt/overlay/sglang"),
        ("copies", "sglang", "/opt/overlay/sglang-1.0.dist-info"),
        ("copies", "flashinfer-python", "SITE/flashinfer_python-0.9.dist-info"),
    },
    "/opt/no-record": {
        ("unknown", "sglang", "-"),
        ("unknown", "flashinfer-python", "SITE/flashinfer_python-1.0.dist-info/RECORD"),
    },
}
KINDS = {
    "/opt/venv": "venv",
    "/opt/conda/envs/serve": "conda",
    "/home/ops/.local/share/uv/tools/sglang": "uv-tool",
    "/home/ops/.local/share/pipx/venvs/sglang": "pipx",
    "/home/ops/.local": "user",
    "/usr": "system",
    "/srv/target": "directory",
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> AuditedHost:
    if audited.UV is None:
        pytest.skip("uv is not installed")
    made = AuditedHost(tmp_path_factory.mktemp("audited"))
    for build in ALL:
        build(made)
    return made


def audit(host: AuditedHost, *options: str | Path) -> Ran:
    return run("audit", "--root", host.root, "--catalogue", host.catalogue, "--output", "json",
               *options, **host.environment())  # fmt: skip


@pytest.fixture(scope="module")
def result(host: AuditedHost) -> dict[str, Any]:
    ran = audit(host)
    assert ran.code == 1, ran.err
    return ran.result


def by_prefix(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {e["prefix"]: e for e in result["environments"]}


def found(environment: dict[str, Any]) -> set[tuple[str, str, str]]:
    site = re.compile(r"^.*/site-packages/(?=[^/]+(\.dist-info/?|\.pth|\.py)|plug)")
    return {
        (f["kind"], f["target"], site.sub("SITE/", f["path"])
         if f["path"].startswith(environment["prefix"]) else f["path"])
        for f in environment["findings"]
    }  # fmt: skip


def test_every_environment_is_found_and_no_other(result: dict[str, Any]) -> None:
    assert set(by_prefix(result)) == set(EXPECTED)
    assert {p: by_prefix(result)[p]["kind"] for p in KINDS} == KINDS


@pytest.mark.parametrize("prefix", sorted(EXPECTED))
def test_each_way_of_editing_has_its_findings(result: dict[str, Any], prefix: str) -> None:
    assert found(by_prefix(result)[prefix]) == EXPECTED[prefix]


def test_what_is_lacking_of_a_set_that_was_applied_by_hand_is_named(
    result: dict[str, Any],
) -> None:
    (entry,) = by_prefix(result)["/opt/half"]["sets"]
    assert entry["state"] == "by-hand" and not entry["counts"]
    assert entry["reason"] == "this is pair applied by hand, without its right change"
    assert (entry["present"], entry["lacking"]) == (["pair/left"], ["pair/right"])
    (whole,) = by_prefix(result)["/opt/bundle"]["sets"]
    assert whole["id"] == "bundle" and whole["lacking"] == []


def test_a_link_to_an_environment_is_a_name_of_it(result: dict[str, Any]) -> None:
    assert by_prefix(result)["/opt/venv"]["names"] == ["/opt/venv-link"]


def test_hard_linked_copies_are_named(result: dict[str, Any]) -> None:
    (package,) = by_prefix(result)["/opt/uv-b"]["packages"]
    assert package["same_as"] == ["/opt/uv-a"]


def test_the_edited_copy_in_an_installers_cache_is_a_finding_of_the_host(
    result: dict[str, Any],
) -> None:
    shared = [f for f in result["findings"] if f["environment"] is None and f["kind"] == "shared"]
    assert [f["path"].split("/")[-1] for f in shared] == ["a.py", "b.py"]
    assert "/.cache/uv/" in shared[0]["path"] and "/opt/conda/pkgs/" in shared[1]["path"]
    assert all("brings the edit along" in f["detail"] for f in shared)


def test_a_set_names_the_other_host_that_it_was_verified_on(result: dict[str, Any]) -> None:
    environment = by_prefix(result)["/opt/image"]
    (entry,) = environment["sets"]
    assert entry["state"] == "staged" and entry["counts"] is False
    assert entry["verification"]["passed"] and not entry["verification"]["here"]
    assert entry["verification"]["machine_id"] == "another-machine"
    assert "verified on another host" in environment["findings"][0]["detail"]


def test_the_checkout_that_an_environment_imports_is_compared_with_its_head(
    result: dict[str, Any],
) -> None:
    (package,) = by_prefix(result)["/opt/editable"]["packages"]
    assert package["kind"] == "editable" and package["root"] == "/sgl-workspace/sglang/python"
    assert package["origin"].startswith("git commit ")
    assert {f["path"] for f in package["files"]} == {A, "sglang/mine.py"}, "run.log is ignored"


def test_overlays_that_the_host_sets_are_named(result: dict[str, Any]) -> None:
    carriers = [f for f in result["findings"] if f["environment"] is None]
    assert "SGLANG_MOE_CONFIG_DIR" in {f["path"] for f in carriers if f["kind"] == "carrier"}


def test_the_answer_is_the_golden_file(host: AuditedHost, result: dict[str, Any]) -> None:
    text = json.dumps(result, indent=1, sort_keys=True).replace(str(host.root), "ROOT")
    text = re.sub(r"python3\.\d+", "pythonX", text)
    text = re.sub(r"\"python\": \"3\.\d+\"", '"python": "X"', text)
    text = re.sub(r"archive-v0/[\w-]+", "archive-v0/ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:+]+", "TIME", text)
    text = re.sub(r"git commit [0-9a-f]{40}", "git commit HEAD", text)
    text = re.sub(r"\"(bytes|directories)\": \d+", r'"\1": 0', text)
    if os.environ.get("SM120PATCH_WRITE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text + "\n")
    assert json.loads(text) == json.loads(GOLDEN.read_text())


def test_the_stat_cache_gives_the_same_answer(host: AuditedHost, result: dict[str, Any]) -> None:
    assert audit(host, "--quick").result == result
    assert audit(host, "--quick").result == result


def test_one_environment_of_an_image_can_be_named(host: AuditedHost) -> None:
    ran = audit(host, "--env", "/opt/sed")
    assert ran.code == 1 and ran.result["prefix"] == "/opt/sed"
    assert ran.result["versions"] == {"sglang": "1.0", "flashinfer-python": "1.0"}
    clean = audit(host, "--env", "/opt/venv-link").result
    assert clean["prefix"] == "/opt/venv" and by_prefix(clean)["/opt/venv"]["findings"] == []
    missing = audit(host, "--env", "/opt/none")
    assert missing.code == 10 and "/opt/none" in missing.error["message"]


def test_fail_on_chooses_and_unknown_always_fails(host: AuditedHost) -> None:
    assert audit(host, "--env", "/opt/sed", "--fail-on", "lost").code == 0
    assert audit(host, "--env", "/opt/sed", "--fail-on", "by-hand").code == 1
    assert audit(host, "--env", "/opt/no-record", "--fail-on", "lost").code == 1


def test_the_text_says_what_the_findings_are(host: AuditedHost) -> None:
    ran = run("audit", "--root", host.root, "--catalogue", host.catalogue, **host.environment())
    assert "this is pair applied by hand, without its right change" in ran.out
    assert "25 environments: " in ran.out
    assert "improved on another host, ffffffffffff" in ran.out


def test_a_copy_in_a_users_site_beside_that_of_the_system_is_named(tmp_path: Path) -> None:
    host = AuditedHost(tmp_path)
    audited.system(host)
    user = host.path("/home/ops/.local/lib/python3.11/site-packages")
    audited.install_fake(user, "sglang", "1.0", audited.FILES["sglang"])
    (copy,) = audit(host).result["findings"]
    assert (copy["kind"], copy["target"]) == ("copies", "sglang")
    assert copy["path"].startswith("/home/ops/.local/") and "of /usr" in copy["detail"]


# --- nothing of this host is read through an image ----------------------------------------------

WATCH = """
import os, sys
EVENTS = ("open", "os.listdir", "os.scandir", "sqlite3.connect")
def watch(event, args):
    if event in EVENTS and isinstance(args[0], (str, bytes)):
        path = os.path.realpath(os.fsdecode(args[0]))
        if path.startswith(os.environ["FORBIDDEN"]):
            os.write(2, f"TOUCHED {path}\\n".encode())
sys.addaudithook(watch)
"""


def test_links_in_an_image_lead_nowhere_outside_of_it(tmp_path: Path) -> None:
    outside = AuditedHost(tmp_path / "outside")
    secret = outside.venv("/opt/venv")
    audited.edited_with_sed(outside)
    subprocess.run(["git", "init", "-q", str(outside.path("/repo"))], check=True)
    host = AuditedHost(tmp_path / "inside")
    up = "../" * 12
    site = host.venv("/opt/files")
    for path, target in ((A, secret / A), (B, f"{up}{secret / B}")):
        (site / path).unlink()
        (site / path).symlink_to(target)
    site = host.venv("/opt/directory", install=False)
    (site / "sglang").symlink_to(secret / "sglang")
    (site / "sglang-1.0.dist-info").symlink_to(f"{up}{secret}/sglang-1.0.dist-info")
    host.path("/opt/whole").symlink_to(outside.path("/opt/sed"))
    (host.path("/opt/prefix") / "lib").mkdir(parents=True)
    (host.path("/opt/prefix") / "pyvenv.cfg").symlink_to(outside.path("/opt/venv/pyvenv.cfg"))
    (host.path("/opt/prefix") / "lib" / Path(host.lib).parts[1]).symlink_to(secret.parent)
    site = host.venv("/opt/editable", install=False)
    audited.install_editable(site, "sglang", "1.0", secret)
    checkout = host.path(str(secret))
    (checkout / "sglang").mkdir(parents=True)
    (checkout / "sglang" / "__init__.py").write_bytes(b"")
    (checkout / ".git").write_text(f"gitdir: {outside.path('/repo/.git')}\n")
    site = host.venv("/opt/state")
    (host.path("/opt/state") / ".sm120patch").symlink_to(outside.path("/opt/sed/.sm120patch"))
    ran = _watched(host, outside.root)
    assert "TOUCHED" not in ran.err, ran.err
    environments = by_prefix(ran.result)
    assert found(environments["/opt/files"]) == {("missing", "sglang", A), ("missing", "sglang", B)}
    assert environments["/opt/directory"]["packages"] == []
    assert "/opt/whole" not in environments
    kinds = {f["kind"] for f in environments["/opt/editable"]["findings"]}
    assert kinds == {"unknown"}, "its history cannot be read from inside"


def test_the_watch_would_see_a_file_that_is_read(tmp_path: Path) -> None:
    host = AuditedHost(tmp_path / "inside")
    host.venv("/opt/venv")
    assert f"TOUCHED {host.root}" in _watched(host, host.root).err


def _watched(host: AuditedHost, forbidden: Path) -> Ran:
    from tests.support.command import run_after

    return run_after(
        WATCH, "audit", "--root", host.root, "--catalogue", host.catalogue, "--output", "json",
        FORBIDDEN=str(forbidden), **host.environment(),
    )  # fmt: skip
