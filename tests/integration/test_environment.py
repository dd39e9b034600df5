from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sm120patch.environment import (
    Checkout,
    NoCheckout,
    discover,
    locate,
    read_back,
    take_snapshot,
    verify_records,
    writable,
)
from sm120patch.environment.asking import Question, ask
from sm120patch.errors import HostError, UsageError
from sm120patch.model import ABSENT, Obstacle, sha256_hex
from tests.support.environments import commit_all, create_venv, install_editable, install_fake

GATE = "sglang/srt/layers/communicator.py"
FILES = {
    "sglang/__init__.py": b"raise RuntimeError('must not be imported')\n",
    "sglang/srt/__init__.py": b"",
    "sglang/srt/layers/__init__.py": b"",
    GATE: b"ENABLED = False\n",
}
FLASHINFER = {"flashinfer/__init__.py": b"", "flashinfer/jit/__init__.py": b""}


def no_originals(_digest: str) -> bytes | None:
    return None


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Virtual environment with a small sglang and flashinfer that must never be imported."""
    site = create_venv(tmp_path / "env")
    install_fake(site, "sglang", "0.5.9", FILES)
    install_fake(site, "flashinfer-python", "0.6.3", FLASHINFER)
    return tmp_path / "env"


@pytest.fixture
def site(prefix: Path) -> Path:
    return next((prefix / "lib").glob("python3*")) / "site-packages"


def python_of(prefix: Path) -> Path:
    return locate(str(prefix), None, {})


# --- locate -------------------------------------------------------------------------------------


def test_a_prefix_names_its_interpreter_without_resolving_links(prefix: Path) -> None:
    assert locate(str(prefix), None, {}) == prefix / "bin" / "python3"


def test_python_is_taken_as_path_or_as_name_on_the_given_path(prefix: Path) -> None:
    exe = prefix / "bin" / "python"
    assert locate(None, str(exe), {}) == exe
    assert locate(None, "python3", {"PATH": str(prefix / "bin")}) == prefix / "bin" / "python3"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_active_environment_is_the_default(prefix: Path, variable: str) -> None:
    assert locate(None, None, {variable: str(prefix)}) == prefix / "bin" / "python3"


def test_a_virtual_environment_on_top_of_conda_wins(prefix: Path, tmp_path: Path) -> None:
    environ = {"VIRTUAL_ENV": str(prefix), "CONDA_PREFIX": str(tmp_path / "conda")}
    assert locate(None, None, environ) == prefix / "bin" / "python3"


def test_without_any_hint_our_own_interpreter_is_not_taken() -> None:
    with pytest.raises(UsageError, match="VIRTUAL_ENV and CONDA_PREFIX") as caught:
        locate(None, None, {"PATH": os.environ["PATH"]})
    assert "--env PREFIX" in (caught.value.hint or "")


def test_two_ways_to_name_the_environment_are_refused(prefix: Path) -> None:
    with pytest.raises(UsageError, match="both"):
        locate(str(prefix), "python3", {})


@pytest.mark.parametrize("name", ["no-such-command", "./no/such/file"])
def test_an_interpreter_that_is_not_there_is_a_host_error(name: str) -> None:
    with pytest.raises(HostError, match="no such"):
        locate(None, name, {"PATH": os.environ["PATH"]})


def test_a_prefix_without_interpreter_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"bin/python3 and .*bin/python"):
        locate(str(tmp_path), None, {})


def test_a_file_given_as_prefix_points_to_the_other_option(prefix: Path) -> None:
    with pytest.raises(HostError, match="is a file") as caught:
        locate(str(prefix / "bin" / "python3"), None, {})
    assert "--python" in (caught.value.hint or "")


def test_a_dangling_interpreter_and_one_without_permission_are_named(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("/no/such/python")
    with pytest.raises(HostError, match="dangling"):
        locate(str(tmp_path), None, {})
    (tmp_path / "bin" / "python").write_text("#!/bin/sh\n")
    with pytest.raises(HostError, match="not an executable file"):
        locate(str(tmp_path), None, {})


# --- discover: wheels ---------------------------------------------------------------------------


def test_both_targets_are_found_without_being_imported(prefix: Path, site: Path) -> None:
    environment = discover(python_of(prefix))
    assert environment.prefix == prefix
    assert environment.site == (site,)
    assert environment.cache_tag == sys.implementation.cache_tag
    sglang = environment.installations["sglang"]
    assert (sglang.version, sglang.root, sglang.kind) == ("0.5.9", site, "wheel")
    assert environment.installations["flashinfer-python"].version == "0.6.3"
    assert environment.missing == {}
    assert sglang.records()[GATE].sha256 == sha256_hex(FILES[GATE])
    assert sglang.other_copies == () and sglang.other_metadata == ()


def test_a_start_up_file_that_prints_does_not_disturb(prefix: Path, site: Path) -> None:
    (site / "noise.pth").write_text("import sys; sys.stdout.write('{\"prefix\": 1}\\n')\n")
    assert discover(python_of(prefix)).prefix == prefix


def test_a_start_up_file_that_hangs_is_not_waited_for(prefix: Path, site: Path) -> None:
    (site / "hang.pth").write_text("import time; time.sleep(60)\n")
    with pytest.raises(HostError, match="no answer"):
        ask(python_of(prefix), ["sglang"], timeout=0.5)


MANY = [("/nowhere", f"sglang/{number:04}.py") for number in range(5000)]
"""More than a pipe takes at once."""


def test_a_long_question_to_one_that_never_reads_it_is_not_waited_for(
    prefix: Path, site: Path
) -> None:
    (site / "hang.pth").write_text("import time; time.sleep(60)\n")
    with pytest.raises(HostError, match="no answer"):
        ask(python_of(prefix), ["sglang"], MANY, timeout=0.5)


def test_a_long_question_reaches_one_that_talks_before_it_listens(prefix: Path, site: Path) -> None:
    (site / "noise.pth").write_text("import sys; sys.stdout.write('x' * 300_000)\n")
    answer = ask(python_of(prefix), ["sglang"], [*MANY, (str(site), GATE)])
    assert len(answer["files"]) == len(MANY) + 1
    assert answer["files"][-1]["sha256"] == sha256_hex(FILES[GATE])


def test_one_that_never_stops_talking_is_stopped(prefix: Path, site: Path) -> None:
    loop = "import os; [os.write(1, b'x' * 65536) for _ in iter(int, 1)]\n"
    (site / "noise.pth").write_text(loop)
    with pytest.raises(HostError, match="wrote more than"):
        ask(python_of(prefix), ["sglang"])


def test_one_that_closes_its_ends_and_stays_is_not_waited_for(prefix: Path, site: Path) -> None:
    (site / "stay.pth").write_text("import os, time; os.closerange(0, 3); time.sleep(60)\n")
    with pytest.raises(HostError, match="exit status -9"):
        ask(python_of(prefix), ["sglang"], timeout=0.5)


def test_something_that_is_no_python_is_a_host_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="exit status 1"):
        discover(Path("/bin/false"))
    script = tmp_path / "python3"
    script.write_text("no program")
    script.chmod(0o755)
    with pytest.raises(HostError, match="cannot run"):
        discover(script)


def test_pythonpath_and_working_directory_play_no_part(
    prefix: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoy = tmp_path / "decoy"
    install_fake(decoy, "sglang", "0.0.1", FILES)
    monkeypatch.setenv("PYTHONPATH", str(decoy))
    monkeypatch.chdir(decoy)
    assert discover(python_of(prefix)).installations["sglang"].root == site


def test_pycache_prefix_comes_from_the_serving_environment(prefix: Path) -> None:
    environment = discover(python_of(prefix), {"PYTHONPYCACHEPREFIX": "/var/cache/py"})
    assert environment.pycache_prefix == Path("/var/cache/py")


def test_an_absent_package_is_missing_with_a_reason(tmp_path: Path) -> None:
    create_venv(tmp_path / "env")
    environment = discover(python_of(tmp_path / "env"))
    assert environment.installations == {}
    assert "finds no package sglang" in environment.missing["sglang"]


def test_metadata_without_the_package_says_so(prefix: Path, site: Path) -> None:
    for path in FILES:
        (site / path).unlink()
    reason = discover(python_of(prefix)).missing["sglang"]
    assert "namespace package" in reason and "says it is installed" in reason


def test_a_single_module_is_not_taken_for_the_package(tmp_path: Path) -> None:
    site = create_venv(tmp_path / "env")
    (site / "sglang.py").write_text("")
    assert "single module" in discover(python_of(tmp_path / "env")).missing["sglang"]


def test_an_import_hook_that_fails_is_reported(prefix: Path, site: Path) -> None:
    (site / "broken.pth").write_text(
        "import sys; sys.meta_path.insert(0, type('F', (), {'find_spec':"
        " staticmethod(lambda n, p=None, t=None: 1/0 if n == 'sglang' else None)}))\n"
    )
    assert "ZeroDivisionError" in discover(python_of(prefix)).missing["sglang"]


def test_an_import_hook_of_the_old_kind_does_not_disturb(prefix: Path, site: Path) -> None:
    (site / "old.pth").write_text(
        "import sys; sys.meta_path.insert(0, type('F', (), {'find_module': lambda *_: None})())\n"
    )
    assert set(discover(python_of(prefix)).installations) == {"sglang", "flashinfer-python"}


def test_a_package_that_a_start_up_file_has_imported_is_where_it_was_found(
    prefix: Path, site: Path
) -> None:
    (site / "early.pth").write_text(
        "import sys, types, importlib.machinery as m;"
        " sys.modules['sglang'] = types.ModuleType('s');"
        " sys.modules['sglang'].__spec__ = m.ModuleSpec('sglang', None, origin='elsewhere')\n"
    )
    assert "sglang" in discover(python_of(prefix)).missing


def test_a_second_copy_on_the_path_is_reported_and_the_imported_one_taken(
    prefix: Path, site: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    install_fake(other, "sglang", "0.5.8", FILES)
    (site / "other.pth").write_text(f"{other}\n")
    sglang = discover(python_of(prefix)).installations["sglang"]
    assert (sglang.root, sglang.version) == (site, "0.5.9")
    assert sglang.other_copies == (other / "sglang",)
    assert sglang.other_metadata == (other / "sglang-0.5.8.dist-info",)


def test_two_metadata_of_one_name_are_reported(prefix: Path, site: Path) -> None:
    install_fake(site, "sglang", "0.5.8", {})
    os.utime(site / "sglang-0.5.8.dist-info", (1, 1))
    sglang = discover(python_of(prefix)).installations["sglang"]
    assert sglang.version == "0.5.9"
    assert [path.name for path in sglang.other_metadata] == ["sglang-0.5.8.dist-info"]


def test_a_package_without_metadata_has_no_version(prefix: Path, site: Path) -> None:
    (site / "sglang-0.5.9.dist-info").rename(site / "gone")
    assert "no metadata" in discover(python_of(prefix)).missing["sglang"]


@pytest.mark.parametrize("text", [b"", b"Name: sglang\n", b"\xff\xfe", b"Version:\n\nVersion: 1\n"])
def test_garbage_metadata_names_no_version(prefix: Path, site: Path, text: bytes) -> None:
    (site / "sglang-0.5.9.dist-info" / "METADATA").write_bytes(text)
    assert "names no version" in discover(python_of(prefix)).missing["sglang"]


@pytest.mark.parametrize(
    "name", ['with "quotes" and \\', "line\nfeed\ttab", os.fsdecode(b"\xffx"), "ß😀"]
)
def test_names_of_directories_come_back_as_they_are(tmp_path: Path, name: str) -> None:
    site = create_venv(tmp_path / "env")
    install_fake(site, "sglang", "1.0", {"sglang/__init__.py": b""})
    renamed = (tmp_path / "env").rename(tmp_path / name)
    found = discover(python_of(renamed))
    assert found.prefix == renamed
    assert found.installations["sglang"].root == renamed / site.relative_to(tmp_path / "env")


@pytest.mark.parametrize("python", sorted({sys.executable, "/usr/bin/python3"}))
def test_site_directories_are_those_of_sysconfig(python: str) -> None:
    if not Path(python).exists():
        pytest.skip(f"{python} is not there")
    question = "import sysconfig; p = sysconfig.get_paths(); print([p['purelib'], p['platlib']])"
    done = subprocess.run(
        [python, "-I", "-c", question], capture_output=True, text=True, check=True
    )
    assert str(Question(Path(python), []).answer()["site"]) == done.stdout.strip()


def test_the_system_python_is_an_environment_as_well(tmp_path: Path) -> None:
    base = Path(sys.base_prefix)
    environment = discover(locate(str(base), None, {}))
    assert environment.prefix == environment.base_prefix
    assert set(environment.installations) | set(environment.missing) == {
        "sglang",
        "flashinfer-python",
    }


# --- discover: editable checkouts ---------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git repository whose import root is the sub-directory `python`, as SGLang's is."""
    tree = tmp_path / "src" / "sglang"
    for path, data in FILES.items():
        (tree / "python" / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / "python" / path).write_bytes(data)
    commit_all(tree)
    return tree


@pytest.mark.parametrize("finder", [False, True], ids=["pth", "finder"])
def test_an_editable_checkout_is_followed_to_git(
    tmp_path: Path, checkout: Path, finder: bool
) -> None:
    site = create_venv(tmp_path / "env")
    install_editable(site, "sglang", "0.5.9", checkout / "python", finder=finder)
    sglang = discover(python_of(tmp_path / "env")).installations["sglang"]
    assert (sglang.kind, sglang.root) == ("editable", checkout / "python")
    assert (sglang.version, sglang.record) == ("0.5.9", None)
    found = sglang.checkout()
    assert isinstance(found, Checkout)
    assert (found.work_tree, found.git_dir) == (checkout, checkout / ".git")
    assert found.offset == "python" and len(found.commit) == 40


def test_an_egg_info_beside_the_source_is_editable_too(tmp_path: Path, checkout: Path) -> None:
    site = create_venv(tmp_path / "env")
    (site / "easy-install.pth").write_text(f"{checkout / 'python'}\n")
    info = checkout / "python" / "sglang.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
    sglang = discover(python_of(tmp_path / "env")).installations["sglang"]
    assert (sglang.kind, sglang.version) == ("editable", "0.5.9")


def test_an_installed_copy_beside_a_checkout_is_the_other_copy(
    prefix: Path, site: Path, checkout: Path
) -> None:
    install_editable(site, "sglang", "0.5.9", checkout / "python")
    sglang = discover(python_of(prefix)).installations["sglang"]
    assert sglang.root == site
    assert sglang.other_copies == (checkout / "python" / "sglang",)


def test_the_snapshot_of_a_checkout_takes_pristine_bytes_from_head(
    tmp_path: Path, checkout: Path
) -> None:
    site = create_venv(tmp_path / "env")
    install_editable(site, "sglang", "0.5.9", checkout / "python")
    (checkout / "python" / GATE).write_bytes(b"ENABLED = True\n")
    (checkout / "python" / "sglang" / "new.py").write_bytes(b"")
    environment = discover(python_of(tmp_path / "env"))
    wanted = {"sglang": [GATE, "sglang/__init__.py", "sglang/new.py"]}
    target = take_snapshot(environment, wanted, no_originals).targets["sglang"]
    edited, clean, new = (target.files[path] for path in wanted["sglang"])
    assert edited.data == b"ENABLED = True\n" and edited.pristine == FILES[GATE]
    assert edited.pristine_sha256 == sha256_hex(FILES[GATE])
    assert clean.sha256 == clean.pristine_sha256
    assert new.pristine_sha256 == ABSENT and new.pristine is None
    assert target.pristine_origin.startswith("git commit ")


def test_dirty_files_of_a_checkout_are_its_differences(tmp_path: Path, checkout: Path) -> None:
    site = create_venv(tmp_path / "env")
    install_editable(site, "sglang", "0.5.9", checkout / "python")
    (checkout / "python" / GATE).write_bytes(b"ENABLED = True\n")
    (checkout / "python" / "sglang" / "srt" / "__init__.py").unlink()
    (checkout / "python" / "sglang" / "nëw file.py").write_bytes(b"")
    (checkout / "README.md").write_bytes(b"outside of the package")
    index = (checkout / ".git" / "index").read_bytes()
    sglang = discover(python_of(tmp_path / "env")).installations["sglang"]
    assert [(d.path, d.kind) for d in verify_records(sglang)] == [
        ("sglang/nëw file.py", "added"),
        ("sglang/srt/__init__.py", "missing"),
        (GATE, "changed"),
    ]
    assert [d.path for d in verify_records(sglang, {GATE})][-1] == "sglang/srt/__init__.py"
    assert (checkout / ".git" / "index").read_bytes() == index


def test_a_source_directory_without_git_has_no_pristine_content(
    tmp_path: Path, checkout: Path
) -> None:
    site = create_venv(tmp_path / "env")
    (checkout / ".git").rename(tmp_path / "no-git")
    install_editable(site, "sglang", "0.5.9", checkout / "python")
    environment = discover(python_of(tmp_path / "env"))
    assert isinstance(environment.installations["sglang"].checkout(), NoCheckout)
    target = take_snapshot(environment, {"sglang": [GATE]}, no_originals).targets["sglang"]
    assert target.files[GATE].pristine_sha256 is None
    assert "not in a git work tree" in target.pristine_origin
    assert list(verify_records(environment.installations["sglang"])) == []


def test_a_repository_without_commits_has_no_pristine_content(
    tmp_path: Path, checkout: Path
) -> None:
    from git import Repo

    (checkout / ".git").rename(tmp_path / "no-git")
    Repo.init(checkout).close()
    site = create_venv(tmp_path / "env")
    install_editable(site, "sglang", "0.5.9", checkout / "python")
    found = discover(python_of(tmp_path / "env")).installations["sglang"].checkout()
    assert isinstance(found, NoCheckout) and "git cannot read" in found.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a checkout away")
def test_a_checkout_that_git_does_not_trust_says_so(tmp_path: Path, checkout: Path) -> None:
    site = create_venv(tmp_path / "env")
    install_editable(site, "sglang", "0.5.9", checkout / "python")
    for path in (checkout, *checkout.rglob("*")):
        os.chown(path, 1234, 1234)
    found = discover(python_of(tmp_path / "env")).installations["sglang"].checkout()
    assert isinstance(found, NoCheckout), found
    assert "ownership" in found.reason


# --- snapshot -----------------------------------------------------------------------------------


def test_a_pristine_file_carries_its_own_bytes(prefix: Path, site: Path) -> None:
    (site / GATE).chmod(0o640)
    snapshot = take_snapshot(discover(python_of(prefix)), {"sglang": [GATE]}, no_originals, "12.0")
    file = snapshot.targets["sglang"].files[GATE]
    assert file.data == file.pristine == FILES[GATE]
    assert file.sha256 == file.pristine_sha256 == sha256_hex(FILES[GATE])
    assert (file.mode, file.nlink, file.obstacle) == (0o640, 1, None)
    assert file.mtime_ns == (site / GATE).stat().st_mtime_ns
    assert snapshot.compute_capability == "12.0"
    assert snapshot.targets["flashinfer-python"].files == {}


def test_an_edited_file_gets_its_pristine_bytes_from_the_store(prefix: Path, site: Path) -> None:
    (site / GATE).write_bytes(b"ENABLED = True\n")
    store = {sha256_hex(FILES[GATE]): FILES[GATE]}
    environment = discover(python_of(prefix))
    known = take_snapshot(environment, {"sglang": [GATE]}, store.get).targets["sglang"].files[GATE]
    assert known.pristine == FILES[GATE] and known.data == b"ENABLED = True\n"
    lost = take_snapshot(environment, {"sglang": [GATE]}, no_originals).targets["sglang"]
    assert lost.files[GATE].pristine is None
    assert lost.files[GATE].pristine_sha256 == sha256_hex(FILES[GATE])


def obstacle_of(prefix: Path, path: str) -> Obstacle | None:
    environment = discover(python_of(prefix))
    target = take_snapshot(environment, {"sglang": [path]}, no_originals).targets["sglang"]
    assert target.files[path].data == b""
    return target.files[path].obstacle


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "sglang/../../x", "", "sglang//a", "a\0b"])
def test_a_path_that_leads_out_is_an_obstacle(prefix: Path, path: str) -> None:
    assert obstacle_of(prefix, path) is Obstacle.OUTSIDE


def test_a_missing_file_is_an_obstacle(prefix: Path) -> None:
    assert obstacle_of(prefix, "sglang/srt/none.py") is Obstacle.MISSING
    assert obstacle_of(prefix, "sglang/none/none.py") is Obstacle.MISSING
    assert obstacle_of(prefix, f"{GATE}/below-a-file.py") is Obstacle.MISSING


def test_a_symlinked_file_is_an_obstacle(prefix: Path, site: Path) -> None:
    (site / GATE).rename(site / "real.py")
    (site / GATE).symlink_to(site / "real.py")
    assert obstacle_of(prefix, GATE) is Obstacle.SYMLINK


def test_a_symlinked_directory_on_the_way_is_an_obstacle(prefix: Path, site: Path) -> None:
    (site / "sglang" / "srt").rename(site / "real")
    (site / "sglang" / "srt").symlink_to(site / "real")
    assert obstacle_of(prefix, GATE) is Obstacle.SYMLINK


def test_a_fifo_is_an_obstacle_and_does_not_block(prefix: Path, site: Path) -> None:
    (site / GATE).unlink()
    os.mkfifo(site / GATE)
    assert obstacle_of(prefix, GATE) is Obstacle.NOT_REGULAR


def test_a_directory_is_an_obstacle(prefix: Path) -> None:
    assert obstacle_of(prefix, "sglang/srt") is Obstacle.NOT_REGULAR


def test_missing_and_unknown_targets_are_named(tmp_path: Path) -> None:
    create_venv(tmp_path / "env")
    environment = discover(python_of(tmp_path / "env"))
    snapshot = take_snapshot(environment, {"sglang": [GATE], "vllm": ["x"]}, no_originals)
    assert snapshot.targets == {}
    assert set(snapshot.missing) == {"sglang", "flashinfer-python", "vllm"}


def test_a_wheel_without_record_has_no_pristine_content(prefix: Path, site: Path) -> None:
    (site / "sglang-0.5.9.dist-info" / "RECORD").unlink()
    environment = discover(python_of(prefix))
    target = take_snapshot(environment, {"sglang": [GATE]}, no_originals).targets["sglang"]
    assert target.files[GATE].pristine_sha256 is None
    assert "no RECORD" in target.pristine_origin
    assert environment.installations["sglang"].table().faults


# --- read back ----------------------------------------------------------------------------------


def problems(prefix: Path, expected: bytes = FILES[GATE], **environ: str) -> list[str]:
    environment = discover(python_of(prefix), environ)
    return read_back(environment, {("sglang", GATE): sha256_hex(expected)})


def test_what_was_written_is_what_is_imported(prefix: Path, site: Path) -> None:
    assert problems(prefix) == []
    (site / GATE).write_bytes(b"ENABLED = True\n")
    assert problems(prefix, b"ENABLED = True\n") == []


def test_other_bytes_are_a_problem(prefix: Path, site: Path) -> None:
    (site / GATE).write_bytes(b"ENABLED = True\n")
    assert "holds sha256" in problems(prefix)[0]


def test_a_missing_file_and_a_missing_target_are_problems(prefix: Path, site: Path) -> None:
    environment = discover(python_of(prefix))
    (site / GATE).unlink()
    found = read_back(environment, {("sglang", GATE): "0" * 64, ("vllm", "x.py"): "0" * 64})
    assert "vllm is not installed" in found[0] and "No such file" in found[1]


def test_a_package_of_the_same_name_wins_over_the_module(prefix: Path, site: Path) -> None:
    shadow = (site / GATE).with_suffix("")
    shadow.mkdir()
    (shadow / "__init__.py").write_bytes(b"")
    assert "in its place" in problems(prefix)[0]


def test_another_copy_that_now_wins_is_a_problem(prefix: Path, site: Path, tmp_path: Path) -> None:
    environment = discover(python_of(prefix))
    install_fake(tmp_path / "first", "sglang", "0.5.9", FILES)
    hook = f"import sys; sys.path.insert(0, {str(tmp_path / 'first')!r})\n"
    (site / "first.pth").write_text(hook)
    found = read_back(environment, {("sglang", GATE): sha256_hex(FILES[GATE])})
    assert f"now imports it from {tmp_path / 'first'}" in found[0]


def replace_keeping_the_second(path: Path, data: bytes) -> None:
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_bytecode_of_a_file_replaced_within_the_same_second_is_stale(
    prefix: Path, site: Path
) -> None:
    other = FILES[GATE].replace(b"False", b"True ")
    py_compile.compile(str(site / GATE))
    assert problems(prefix) == []
    replace_keeping_the_second(site / GATE, other)
    assert "holds other code" in problems(prefix, other)[0]


@pytest.mark.parametrize("optimize", [1, 2])
def test_optimized_bytecode_is_looked_at(prefix: Path, site: Path, optimize: int) -> None:
    other = FILES[GATE].replace(b"False", b"True ")
    py_compile.compile(str(site / GATE), optimize=optimize)
    replace_keeping_the_second(site / GATE, other)
    assert f"opt-{optimize}.pyc" in problems(prefix, other)[0]


def test_an_unchecked_hash_pyc_is_stale_whatever_the_times(prefix: Path, site: Path) -> None:
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(site / GATE), invalidation_mode=mode)
    assert problems(prefix) == []
    (site / GATE).write_bytes(b"ENABLED = 12345\n")
    assert "holds other code" in problems(prefix, b"ENABLED = 12345\n")[0]


def test_bytecode_that_python_would_reject_is_no_problem(prefix: Path, site: Path) -> None:
    py_compile.compile(str(site / GATE))
    (site / GATE).write_bytes(b"ENABLED = 1234567890\n")
    assert problems(prefix, b"ENABLED = 1234567890\n") == []
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    py_compile.compile(str(site / GATE), invalidation_mode=mode)
    (site / GATE).write_bytes(b"ENABLED = False\n")
    assert problems(prefix, b"ENABLED = False\n") == []


def test_garbage_bytecode_with_a_valid_header_is_stale(prefix: Path, site: Path) -> None:
    cached = Path(py_compile.compile(str(site / GATE)) or "")
    cached.write_bytes(cached.read_bytes()[:16] + b"\0garbage")
    assert "holds other code" in problems(prefix)[0]


def test_bytecode_under_the_pycache_prefix_is_looked_at(
    prefix: Path, site: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "pyc"
    other = FILES[GATE].replace(b"False", b"True ")
    code = "import sys, py_compile; py_compile.compile(sys.argv[1])"
    subprocess.run(
        [python_of(prefix), "-X", f"pycache_prefix={tree}", "-c", code, site / GATE], check=True
    )
    replace_keeping_the_second(site / GATE, other)
    assert problems(prefix, other) == []
    assert str(tree) in problems(prefix, other, PYTHONPYCACHEPREFIX=str(tree))[0]


# --- writability, verification of RECORD --------------------------------------------------------


def test_a_directory_is_writable_when_a_file_can_really_be_made(tmp_path: Path) -> None:
    assert writable(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_refuses_is_noticed_even_by_root() -> None:
    assert "/proc" in (writable(Path("/proc")) or "")
    assert writable(Path("/no/such/directory"))


def test_verification_leaves_out_what_the_ledger_answers_for(prefix: Path, site: Path) -> None:
    (site / GATE).write_bytes(b"ENABLED = True\n")
    (site / "sglang" / "stray.py").write_bytes(b"")
    sglang = discover(python_of(prefix)).installations["sglang"]
    found = [(d.path, d.kind) for d in verify_records(sglang)]
    assert found == [(GATE, "changed"), ("sglang/stray.py", "added")]
    assert [d.path for d in verify_records(sglang, {GATE})] == ["sglang/stray.py"]


@pytest.mark.network
def test_the_published_wheels_are_read_and_verified(
    real_env: Callable[[str, str], Path],
) -> None:
    prefix = real_env("0.5.9", "0.6.3")
    environment = discover(python_of(prefix))
    assert {t: i.version for t, i in environment.installations.items()} == {
        "sglang": "0.5.9",
        "flashinfer-python": "0.6.3",
    }
    header = "flashinfer/data/include/flashinfer/comm/trtllm_allreduce.cuh"
    root = environment.installations["flashinfer-python"].root
    with (root / header).open("ab") as stream:
        stream.write(b"// edited\n")
    found = [d for i in environment.installations.values() for d in verify_records(i)]
    assert [(d.path, d.kind) for d in found] == [(header, "changed")]
    snapshot = take_snapshot(environment, {"sglang": [GATE]}, no_originals)
    file = snapshot.targets["sglang"].files[GATE]
    assert file.pristine == file.data
