"""Audits run nothing of what they look at, and take whatever is written there as data."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sm120patch.audit import gittree
from sm120patch.audit.gittree import Commit
from sm120patch.audit.tree import Tree
from tests.support.audited import FILES, SED_A, sh
from tests.support.catalogue import A_TEXT, KERNEL, A, B
from tests.support.command import Ran, run
from tests.support.environments import commit_all, install_editable, install_fake
from tests.support.place import Checkout, Place, slow


def findings(ran: Ran) -> set[tuple[str, str]]:
    assert ran.code in (0, 1), ran.out + ran.err
    assert "Traceback" not in ran.err
    return {(f["kind"], f["path"]) for f in ran.result["findings"]}


def audit(place: Place) -> set[tuple[str, str]]:
    return findings(place.run("audit"))


def git(work_tree: Path, *words: str) -> str:
    who = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    return subprocess.check_output(["git", *who, "-C", work_tree, *words], text=True)


# --- nothing is run ----------------------------------------------------------------------------


def test_no_code_of_an_environment_or_a_checkout_is_run(tmp_path: Path) -> None:
    place = Checkout(tmp_path)
    canary = tmp_path / "canary"
    touch = f"open({str(canary)!r}, 'a').close()"
    python = place.prefix / "bin" / "python"
    for name in ("python", "python3"):
        (place.prefix / "bin" / name).unlink()
        (place.prefix / "bin" / name).write_text(f"#!/bin/sh\ntouch {canary}\n")
        (place.prefix / "bin" / name).chmod(0o755)
    (place.site / "sitecustomize.py").write_text(f"{touch}\nimport sglang\n")
    (place.site / "x.pth").write_text(f"import os; {touch}\n")
    (place.source / "sglang" / "__init__.py").write_text(touch)
    repository = place.source.parent
    script = repository / "run.sh"
    script.write_text(f"#!/bin/sh\ntouch {canary}\ncat\n")
    script.chmod(0o755)
    for key in ("core.fsmonitor", "filter.x.clean", "filter.x.smudge", "filter.x.process",
                "core.pager", "diff.external", "core.sshCommand"):  # fmt: skip
        git(repository, "config", key, str(script))
    (repository / ".gitattributes").write_text("* filter=x\n")
    for hook in ("post-index-change", "fsmonitor-watchman"):
        shutil.copy(script, repository / ".git" / "hooks" / hook)
    kinds = {kind for kind, _path in audit(place)}
    assert {"carrier", "foreign"} <= kinds and not canary.exists()
    subprocess.run([python], check=True, stdin=subprocess.DEVNULL)
    assert canary.exists(), "the canary would have sung"


# --- checkouts ---------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("layout", ["packed", "detached", "worktree", "shared", "branch"])
def test_a_checkout_is_read_however_git_keeps_it(checkout: Checkout, layout: str) -> None:
    repository = checkout.source.parent
    work_tree = repository
    if layout == "packed":
        git(repository, "gc", "-q", "--aggressive", "--prune=now")
        assert not list((repository / ".git" / "refs" / "heads").iterdir())
    elif layout == "detached":
        git(repository, "checkout", "-q", "--detach")
    elif layout == "branch":
        git(repository, "checkout", "-q", "-b", "some/branch")
        git(repository, "pack-refs", "--all")
    elif layout == "worktree":
        work_tree = checkout.root / "linked"
        git(repository, "worktree", "add", "-q", str(work_tree))
    else:
        work_tree = checkout.root / "clone"
        git(checkout.root, "clone", "-q", "--shared", str(repository), str(work_tree))
    source = work_tree / "python"
    install_editable(checkout.site, "sglang", "1.0", source)
    assert audit(checkout) == set()
    sh(f'sed -i "{SED_A}" {A}; rm {B}; touch sglang/new.py', source)
    assert audit(checkout) == {
        ("by-hand", "one"), ("by-hand", A), ("missing", B), ("added", "sglang/new.py"),
    }  # fmt: skip


def test_a_checkout_that_nobody_has_installed_is_compared_too(tmp_path: Path) -> None:
    source = tmp_path / "root" / "src" / "sglang" / "python"
    for path, data in {**FILES["sglang"], "sglang/version.py": b'__version__ = "1.0"\n'}.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(data)
    commit_all(source.parent)
    (source / B).write_text("mine = 1\n")
    ran = run("audit", "--root", tmp_path / "root", "--output", "json")
    (environment,) = ran.result["environments"]
    assert (environment["kind"], environment["prefix"]) == ("checkout", "/src/sglang")
    (package,) = environment["packages"]
    assert (package["version"], package["kind"]) == ("1.0", "editable")
    assert findings(ran) == {("foreign", B)}
    named = run("audit", "--env", source.parent, "--output", "json")
    assert findings(named) == {("foreign", B)}


def test_an_edit_that_is_staged_in_the_index_is_no_less_an_edit(checkout: Checkout) -> None:
    sh(f'sed -i "{SED_A}" {A}; git add -A', checkout.source)
    assert audit(checkout) == {("by-hand", "one"), ("by-hand", A)}


def test_rules_of_the_repository_decide_what_is_ignored(checkout: Checkout) -> None:
    work = checkout.source.parent
    (work / ".gitignore").write_text("*.log\nbuild/\n!keep.log\n")
    (checkout.source / "sglang" / ".gitignore").write_text("!special.log\n")
    (work / ".git" / "info").mkdir(exist_ok=True)
    (work / ".git" / "info" / "exclude").write_text("private.py\n")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "rules")
    for name in ("a.log", "keep.log", "special.log", "private.py", "mine.py", "build/x.py"):
        path = checkout.source / "sglang" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    expected = {
        line[3:].removeprefix("python/")
        for line in git(work, "status", "--porcelain", "-uall").splitlines()
    }
    assert {path for kind, path in audit(checkout) if kind == "added"} == expected
    assert expected == {f"sglang/{n}" for n in ("keep.log", "special.log", "mine.py")}


def test_line_ends_that_git_converts_are_no_edit(checkout: Checkout) -> None:
    path = checkout.source / A
    path.write_bytes(A_TEXT.replace("\n", "\r\n").encode())
    assert audit(checkout) == set()
    path.write_bytes(A_TEXT.replace("\n", "\r\n").encode() + b"x = 1\r\n")
    assert audit(checkout) == {("foreign", A)}


@pytest.mark.parametrize("damage", ["objects", "head", "unborn", "no-repository", "tree"])
def test_a_history_that_cannot_be_read_is_unknown(checkout: Checkout, damage: str) -> None:
    directory = checkout.source.parent / ".git"
    if damage == "objects":
        shutil.rmtree(directory / "objects")
    elif damage == "head":
        (directory / "HEAD").write_bytes(b"\xff\0garbage")
    elif damage == "unborn":
        (directory / "HEAD").write_text("ref: refs/heads/none\n")
    elif damage == "no-repository":
        shutil.rmtree(directory)
    else:
        for path in (directory / "objects").rglob("*"):
            if path.is_file():
                path.chmod(0o644)
                path.write_bytes(path.read_bytes()[:20])
    kinds = {kind for kind, _path in audit(checkout)}
    assert kinds == {"unknown"}


def test_an_image_borrows_no_objects_and_follows_no_links_for_them(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for path, data in FILES["sglang"].items():
        (root / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "src" / path).write_bytes(data)
    commit_all(root / "src")
    tree = Tree.at(root)
    assert isinstance(gittree.read_commit(tree, "/src", "sglang"), Commit)
    objects = root / "src" / ".git" / "objects"
    (objects / "info").mkdir(exist_ok=True)
    (objects / "info" / "alternates").write_text("/somewhere\n")
    borrowed = gittree.read_commit(tree, "/src", "sglang")
    assert isinstance(borrowed, str) and "borrows" in borrowed
    (objects / "info" / "alternates").unlink()
    fan = next(p for p in objects.iterdir() if len(p.name) == 2)
    fan.rename(tmp_path / fan.name)
    fan.symlink_to(tmp_path / fan.name)
    linked = gittree.read_commit(tree, "/src", "sglang")
    assert isinstance(linked, str) and "symbolic links" in linked


def test_a_checkout_that_another_environment_has_patched_is_theirs(checkout: Checkout) -> None:
    checkout.stage("one")
    second = checkout.second()
    ran = run("audit", *second)
    (environment,) = ran.result["environments"]
    (file,) = environment["packages"][0]["files"]
    assert (file["state"], file["changes"]) == ("ours", ["one/first"])
    assert str(checkout.prefix) in file["known_as"] and findings(ran) == set()
    sh(f"echo '# mine' >> {A}", checkout.source)
    assert findings(run("audit", *second)) == {("drifted", A)}


# --- linked directories ------------------------------------------------------------------------


def details(ran: Ran) -> dict[str, str]:
    return {f["path"]: f["detail"] for f in ran.result["findings"]}


def test_a_linked_directory_is_one_finding_and_is_not_entered(place: Place, tmp_path: Path) -> None:
    for number in range(40):  # each of them twice: 2^40 paths to its end
        below = tmp_path / "deep" / str(number)
        below.mkdir(parents=True)
        for name in "lr":
            (below / name).symlink_to(tmp_path / "deep" / str(number + 1))
    (place.site / "sglang" / "rootlink").symlink_to("/")
    (place.site / "sglang" / "deep").symlink_to(tmp_path / "deep" / "0")
    (place.site / "sglang" / "back").symlink_to(".")
    ran = place.run("audit")
    names = ("back", "deep", "rootlink")
    assert findings(ran) == {("added", f"sglang/{name}") for name in names}
    assert details(ran)["sglang/rootlink"].startswith("it leads to the directory /; only what")
    assert findings(place.run("audit", "--quick")) == findings(ran)
    (place.site / "sglang" / "deep").unlink()
    assert len(findings(place.run("audit", "--quick"))) == 2


def test_what_upstream_shipped_is_judged_behind_a_link_too(place: Place, tmp_path: Path) -> None:
    data = place.site / "flashinfer" / "data"
    shutil.move(data, tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "more.py").write_text("")
    link = ("added", "flashinfer/data")
    assert audit(place) == {link}
    (tmp_path / "elsewhere" / "include" / "kernel.cuh").write_text("// mine\n")
    assert audit(place) == {link, ("foreign", KERNEL)}
    (tmp_path / "elsewhere" / "include" / "kernel.cuh").unlink()
    assert audit(place) == {link, ("missing", KERNEL)}


def test_a_checkouts_files_are_judged_behind_a_link_too(tmp_path: Path) -> None:
    place = Checkout(tmp_path)
    repository = place.source.parent
    (place.source / "sglang" / "sub").mkdir()
    (place.source / "sglang" / "sub" / "x.py").write_text("x = 1\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "more")
    shutil.move(place.source / "sglang" / "sub", tmp_path / "elsewhere")
    (place.source / "sglang" / "sub").symlink_to(tmp_path / "elsewhere")
    assert audit(place) == {("added", "sglang/sub")}
    (tmp_path / "elsewhere" / "x.py").write_text("x = 2\n")
    assert audit(place) == {("added", "sglang/sub"), ("foreign", "sglang/sub/x.py")}
    (repository / ".gitignore").write_text("sub\n")
    assert ("added", "sglang/sub") not in audit(place), "git would not name it either"


# --- hostile metadata --------------------------------------------------------------------------

NASTY: dict[str, bytes] = {
    "deep": b"[" * 200_000,
    "binary": bytes(range(256)) * 40,
    "empty": b"",
    "long": b"a" * (3 << 20),
    "nul": b"\0\n\0,\0,\0\n",
    "escape": b"../../../../../../etc/passwd,sha256=AAAA,1\n/etc/passwd,sha256=AAAA,1\n",
    "quote": b'"' * 9999 + b"\n",
    "surrogate": "\udcff,sha256=x,1\n".encode("utf-8", "surrogatepass"),
}


QUICK = ("deep", "escape", "surrogate")
"""What has most to break; the rest is for the long run."""


@pytest.mark.parametrize("content", [n if n in QUICK else slow(n) for n in NASTY])
@pytest.mark.parametrize(
    "name",
    ["sglang-1.0.dist-info/RECORD", "sglang-1.0.dist-info/METADATA", "x.pth",
     "sglang-1.0.dist-info/direct_url.json", "sglang-1.0.dist-info/entry_points.txt"],
)  # fmt: skip
def test_garbage_is_a_finding_or_nothing_never_a_crash(
    shared_place: Place, name: str, content: str
) -> None:
    path = shared_place.site / name
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(NASTY[content])
    try:
        found = audit(shared_place)
    finally:
        path.unlink() if before is None else path.write_bytes(before)
    if name.endswith("RECORD"):
        assert "unknown" in {kind for kind, _path in found}


@pytest.fixture(scope="module")
def shared_place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("nasty"))


def test_names_that_are_no_text_are_shown_and_harm_nothing(shared_place: Place) -> None:
    odd = [b"new\nline.py", b"\xff\xfe.py", b"\x1b[31mred.py", b'"quoted",x.py']
    paths = [bytes(shared_place.site) + b"/sglang/" + name for name in odd]
    try:
        for name in paths:
            with open(name, "wb"):  # noqa: PTH123 - names that a Path may not hold
                pass
        ran = shared_place.run("audit")
        added = [f for f in ran.result["findings"] if f["kind"] == "added"]
        assert len(added) == 4
        text = run("audit", *shared_place.options[:-2]).out
        assert "\x1b" not in text and "new\nline" not in text
        quick = shared_place.run("audit", "--quick")
        assert quick.result["findings"] == ran.result["findings"]
    finally:
        for name in paths:
            Path(name.decode("utf-8", "surrogateescape")).unlink()


def test_one_environment_that_cannot_be_examined_does_not_hide_the_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        site = tmp_path / "opt" / name / "lib" / "python3.11" / "site-packages"
        install_fake(site, "sglang", "1.0", FILES["sglang"])
        (tmp_path / "opt" / name / "pyvenv.cfg").write_text("version = 3.11.7\n")
    state = tmp_path / "opt" / "a" / ".sm120patch"
    state.mkdir()
    (state / "ledger.sqlite3").write_bytes(b"no ledger " * 999)
    (state / "journal.json").write_text(json.dumps({"schema": 1}))
    ran = run("audit", "--root", tmp_path, "--output", "json")
    environments = {e["prefix"]: e for e in ran.result["environments"]}
    assert [f["kind"] for f in environments["/opt/a"]["findings"]] == ["unknown"]
    assert environments["/opt/b"]["packages"][0]["pristine"] == 5


def test_what_another_root_cannot_show_is_said_each_time(tmp_path: Path) -> None:
    site = tmp_path / "opt" / "a" / "lib" / "python3.11" / "site-packages"
    install_fake(site, "sglang", "1.0", FILES["sglang"])
    unseen = ["running servers", "FlashInfer builds"]
    assert run("audit", "--root", tmp_path, "--output", "json").result["not_looked_at"] == unseen
    said = "not looked at with --root: running servers and FlashInfer builds"
    assert said in run("audit", "--root", tmp_path).out
    prefix = tmp_path / "opt" / "a"
    assert "not looked at" not in run("audit", "--env", prefix).out
    assert run("audit", "--env", prefix, "--output", "json").result["not_looked_at"] == []
