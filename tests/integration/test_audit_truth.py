"""What an audit must not pass over, nor tell of another copy than the one that is meant."""

from __future__ import annotations

import contextlib
import os
import py_compile
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from sm120patch.audit import live
from sm120patch.audit.discovery import Search
from sm120patch.audit.findings import Kind
from sm120patch.audit.tree import Tree
from sm120patch.evidence import Event, Evidence
from sm120patch.host import proc
from sm120patch.ledger import open_ledger, read_ledger
from tests.support.audited import FILES, SED_A, publish, sh
from tests.support.catalogue import A, B
from tests.support.command import run
from tests.support.environments import install_fake, record_line
from tests.support.place import Checkout, Place

VERSIONS = {"sglang": "1.0", "flashinfer-python": "1.0"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# --- RECORD -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [(), ("--quick",)])
def test_a_file_that_record_lists_without_a_digest_is_unknown(
    place: Place, mode: tuple[str, ...]
) -> None:
    record = place.site / "sglang-1.0.dist-info" / "RECORD"
    lines = record.read_text().splitlines(keepends=True)
    bare = [f"{B},,\n" if line.startswith(f"{B},") else line for line in lines]
    record.write_text("".join(bare) + "sglang/__pycache__/b.cpython-311.pyc,,\n")
    place.write(B, "value = 'somebody'\n")
    for _ in range(2):  # the second may believe the stat cache
        ran = place.run("audit", *mode)
        (finding,) = ran.result["findings"]
        assert ran.code == 1 and finding["kind"] == "unknown"
        assert finding["detail"].startswith(f"{B}: listed without a digest")
    (unknown,) = place.run("diff").result["unknown"]
    assert B in unknown


def test_bytecode_that_was_shipped_is_not_missing(place: Place) -> None:
    cached = Path(py_compile.compile(str(place.site / B)))
    line = record_line(cached.relative_to(place.site).as_posix(), cached.read_bytes())
    record = place.site / "sglang-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + line)
    for mode in ((), ("--quick",), ("--quick",)):
        assert place.run("audit", *mode).result["findings"] == []


def test_bytecode_that_was_committed_is_not_missing(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    py_compile.compile(str(checkout.a))
    commit(checkout, "with bytecode")
    assert (
        "a.cpython"
        in subprocess.check_output(["git", "-C", checkout.source, "ls-files"], text=True)
        and checkout.findings() == set()
    )


def test_a_garbled_record_is_told_in_a_few_lines(place: Place) -> None:
    """Eight megabytes of it once took twelve gigabytes of memory, and a finding a line."""
    record = place.site / "sglang-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + "x\n" * 1000)
    told = [f["detail"] for f in place.run("audit").result["findings"]]
    assert len(told) == 21 and "and 980 more lines that cannot be used" in told


@pytest.mark.parametrize("name", ["sglang/dump.bin", B])
def test_a_file_of_terabytes_holds_nothing_up(place: Place, name: str) -> None:
    with (place.site / name).open("wb") as stream:
        stream.truncate(8 << 40)
    for mode in ((), ("--quick",)):
        (finding,) = place.run("audit", *mode).result["findings"]
        assert (finding["kind"], finding["path"]) == ("foreign" if name == B else "added", name)
    diff = place.run("diff", name)
    assert diff.code == 1 and f"has {8 << 40} bytes" in diff.out
    ran = place.run("apply", "one", "--with", "extra", "--dry-run")
    assert ran.code == (10 if name == B else 0)


# --- the ledger ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE active_sets SET role = 'king'",
        "UPDATE owned_files SET changes = 'no json'",
        "UPDATE evidence SET data = '{'",
        "DROP TRIGGER events_no_update; UPDATE events SET data = '7'",
    ],
)
def test_a_damaged_row_of_the_ledger_hides_no_file(place: Place, damage: str) -> None:
    place.stage("one")
    with read_ledger(place.state / "ledger.sqlite3") as before:
        assert before is not None
        content = before.history().content(VERSIONS)
    with open_ledger(place.state / "ledger.sqlite3") as ledger:
        evidence = Evidence(content, "b" * 64, "f" * 64, "p" * 64, "real", "improved", True,
                            ("one",), (), {})  # fmt: skip
        ledger.commit(Event("verified", ("one",)), None, evidence)
    with contextlib.closing(sqlite3.connect(place.state / "ledger.sqlite3")) as database:
        database.executescript(damage)
    place.write(B, "value = 'somebody'\n")
    ran = place.run("audit")
    kinds = {(f["kind"], f["path"]) for f in ran.result["findings"]}
    assert ("foreign", B) in kinds and ("unknown", "-") in kinds
    (unknown,) = {f["detail"] for f in ran.result["findings"] if f["kind"] == "unknown"}
    assert "is damaged" in unknown and "examined" not in unknown


def test_sets_that_share_a_file_are_taken_over_together(place: Place, tmp_path: Path) -> None:
    for target, files in FILES.items():
        publish(tmp_path / "cache" / "sm120patch" / "wheels", target, "1.0", files)
    text = place.read(A).replace("line_3 = 3\n", "line_3 = 'one'\n")
    place.write(A, text.replace("line_30 = 30\n", "line_30 = 'two'\n"))
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran = run("audit", *place.options, **cache)
    hints = {f["path"]: f["hint"].split(" --")[0] for f in ran.result["findings"]}
    assert hints == {A: "", "one": "sm120patch adopt one two", "two": "sm120patch adopt one two"}
    (fix,) = run("audit", "--fix", "--yes", *place.options, **cache).result["fixes"]
    assert (fix["subject"], fix["done"], fix["problem"]) == ("one two", True, "")
    assert {n for n, state in place.states().items() if state == "staged"} == {"one", "two"}


# --- what runs in place of a source -------------------------------------------------------------


def test_unchecked_bytecode_of_a_file_that_no_set_knows_is_found(place: Place) -> None:
    source = place.site / "sglang" / "other.py"
    install_fake(place.site, "sglang", "1.0", {**FILES["sglang"], "sglang/other.py": b"x = 1\n"})
    source.write_text("x = 2\n")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    cached = str(py_compile.compile(str(source), invalidation_mode=unchecked))
    source.write_text("x = 1\n")
    assert place.findings() == {("stale-bytecode", cached)}
    ran = place.run("audit", "--fix", "--yes")
    assert ran.code == 0 and not Path(cached).exists()
    py_compile.compile(str(source), invalidation_mode=unchecked)
    assert place.findings() == set(), "unchecked, and of this source"


@pytest.mark.parametrize(
    ("added", "source"),
    [
        (f"sglang/a.{sys.implementation.cache_tag}-x86_64-linux-gnu.so", A),
        ("sglang/a.abi3.so", A),
        ("sglang/a/__init__.py", A),
        ("sglang/__init__.so", "sglang/__init__.py"),
        ("sglang/a.cpython-27-x86_64-linux-gnu.so", ""),
        ("sglang/c.so", ""),
        ("sglang/a.pyc", ""),
    ],
)
def test_what_python_loads_in_place_of_a_source_is_named(
    place: Place, added: str, source: str
) -> None:
    place.stage("one")
    (place.site / added).parent.mkdir(exist_ok=True)
    (place.site / added).write_bytes(b"")
    (finding,) = found(place, "added")
    assert finding["path"] == added
    said = f", and Python loads it in place of {source}" if source else ""
    assert finding["detail"] == f"upstream did not ship it{said}"
    (one,) = [s for s in place.done("status")["sets"] if s["id"] == "one"]
    drifted = [(f["path"], f["detail"]) for f in found(place, "drifted")]
    if source == A:
        reason = f"{A}: Python loads {added} in its place"
        assert (one["state"], one["reason"]) == ("drifted", reason) and drifted == [(A, reason)]
    else:
        assert one["state"] == "staged" and drifted == []


def test_what_is_loaded_in_place_of_a_patched_file_need_not_be_known_to_git(
    tmp_path: Path,
) -> None:
    checkout = Checkout(tmp_path)
    (checkout.source.parent / ".gitignore").write_text("*.so\n")
    commit(checkout, "ignore")
    checkout.stage("one")
    (checkout.source / "sglang" / "a.abi3.so").write_bytes(b"")
    assert checkout.findings() == {("drifted", A)}


def test_a_link_in_place_of_a_patched_file_is_told_alike(place: Place, tmp_path: Path) -> None:
    place.stage("one")
    shutil.copy(place.site / A, tmp_path / "same.py")
    (place.site / A).unlink()
    (place.site / A).symlink_to(tmp_path / "same.py")
    (finding,) = place.run("audit").result["findings"]
    assert (finding["kind"], finding["path"]) == ("drifted", A) and finding["hint"] == ""
    (one,) = [s for s in place.done("status")["sets"] if s["id"] == "one"]
    assert one["state"] == "drifted"
    assert one["reason"] == finding["detail"] == f"{A}: a symbolic link stands in its place"


def test_a_directory_in_place_of_a_patched_file_is_no_shared_edit(place: Place) -> None:
    place.stage("one")
    (place.site / A).unlink()
    (place.site / A).mkdir()
    (finding,) = place.run("audit").result["findings"]
    assert finding["kind"] == "drifted" and "no regular file" in finding["detail"]


# --- which copy ---------------------------------------------------------------------------------


def test_a_copied_environment_is_not_judged_by_the_one_it_was_copied_from(
    place: Place, tmp_path: Path
) -> None:
    (place.site / "start.pth").write_text("import os; os.environ.get('SETUPTOOLS_USE')\n")
    place.stage("one")
    copy = tmp_path / "copy"
    shutil.copytree(place.prefix, copy, symlinks=True)
    site = copy / place.site.relative_to(place.prefix)
    (site / B).write_text("value = 'somebody'\n")
    ran = run("audit", "--env", copy, "--catalogue", place.catalogue, "--output", "json")
    (environment,) = ran.result["environments"]
    assert {p["root"] for p in environment["packages"]} == {str(site)}
    found = {(f["kind"], f["path"]) for f in ran.result["findings"]}
    assert found == {("carrier", str(site / "start.pth")), ("foreign", B), ("unverified", "one")}


def test_a_copy_that_start_up_code_puts_first_is_the_one_that_is_judged(
    place: Place, tmp_path: Path
) -> None:
    other = tmp_path / "base" / "lib" / "python3.11" / "site-packages"
    shutil.copytree(place.site, other)
    (place.site / "base.pth").write_text(f"import sys; sys.path.insert(0, {str(other)!r})\n")
    place.stage("one")
    assert "'one'" in (other / A).read_text()
    (environment,) = place.run("audit").result["environments"]
    assert {p["root"] for p in environment["packages"] if p["target"] == "sglang"} == {str(other)}


@pytest.mark.parametrize(
    "prefix",
    [
        "/usr/src/app/.venv",
        "/usr/local/lib/app/venv",
        "/srv/project/inner/.venv",  # the project is an environment itself
        "/root/.cache/uv/archive-v0/Xy-1",
        "/root/.cache/uv/environments-v2/serve-0123",
        "/opt/free-threaded",
    ],
)
def test_an_environment_is_found_where_people_have_them(tmp_path: Path, prefix: str) -> None:
    for path in ("/srv/project", prefix):
        outside = tmp_path / path.lstrip("/")
        lib = "lib/python3.13t" if path.endswith("threaded") else "lib/python3.11"
        install_fake(outside / lib / "site-packages", "sglang", "1.0", FILES["sglang"])
        (outside / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    (tmp_path / "usr/src/linux-headers-6.1/venv").mkdir(parents=True)
    search = Search(Tree.at(tmp_path))
    places = {p.prefix: p.sites for p in search.places()}
    assert set(places) == {"/srv/project", prefix} and all(places.values())
    assert search.installer_caches == (["/root/.cache/uv"] if "/uv/" in prefix else [])


# --- what HEAD or RECORD have taken over --------------------------------------------------------


def test_a_patch_that_somebody_committed_is_taken_off_all_the_same(tmp_path: Path) -> None:
    """HEAD has it then; a revert left it there and forgot it."""
    checkout = Checkout(tmp_path)
    before = checkout.a.read_text()
    checkout.stage("one")
    content = checkout.done("status")["content"]
    commit(checkout, "with the patch")
    (record,) = found(checkout, "record")
    assert record["path"] == A
    assert checkout.done("status")["content"] == content, "the same code runs"
    assert checkout.done("revert", "one")["outcome"] == "reverted"
    assert checkout.a.read_text() == before
    states = {s["id"]: s["reason"] for s in checkout.done("status")["sets"]}
    assert "edited by somebody" in states["one"], "HEAD has another content"
    assert {f["path"] for f in found(checkout, "foreign")} == {A}


def test_a_patch_with_its_own_line_in_record_is_taken_off_all_the_same(place: Place) -> None:
    before = place.read(A)
    place.stage("one")
    record = place.site / "sglang-1.0.dist-info" / "RECORD"
    lines = [line for line in record.read_text().splitlines(True) if not line.startswith(f"{A},")]
    record.write_text("".join(lines) + record_line(A, (place.site / A).read_bytes()))
    place.done("revert", "one")
    assert place.read(A) == before


def test_a_set_that_head_has_already_is_not_called_absent(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    checkout.a.write_text(checkout.a.read_text().replace("line_3 = 3\n", "line_3 = 'one'\n"))
    commit(checkout, "by hand")
    (one,) = [s for s in checkout.done("status")["sets"] if s["id"] == "one"]
    assert (one["state"], one["counts"]) == ("upstream", False)
    assert "RECORD or HEAD" in one["reason"]
    assert checkout.run("apply", "one", "--no-verify").result["outcome"] == "nothing"


# --- start-up code ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("# off\rimport mine\r", True),
        ("\ufeffimport mine\n", True),
        ("import\tmine", True),
        ("# a form feed\x0cimport mine\n", False),
        ("# a separator\u2028import mine\n", False),
        ("  import mine\n", False),
    ],
)
def test_lines_of_start_up_code_are_those_that_python_sees(
    place: Place, text: str, runs: bool
) -> None:
    (place.site / "mine.pth").write_bytes(text.encode())
    expected = {("carrier", str(place.site / "mine.pth"))} if runs else set()
    assert place.findings() == expected


@pytest.mark.parametrize("name", ["sitecustomize.pyc", "usercustomize.abi3.so"])
def test_start_up_code_without_a_source_is_a_carrier(place: Place, name: str) -> None:
    (place.site / name).write_bytes(b"compiled")
    assert place.findings() == {("carrier", str(place.site / name))}


def test_start_up_code_of_the_python_that_an_environment_was_made_with_is_a_carrier(
    place: Place, tmp_path: Path
) -> None:
    library = tmp_path / "base" / "lib" / "python3.11"
    library.mkdir(parents=True)
    (library / "sitecustomize.py").write_text("import sglang.srt\n")
    settings = f"home = {tmp_path / 'base' / 'bin'}\nversion = 3.11.7\n"
    (place.prefix / "pyvenv.cfg").write_text(settings)
    lib = place.site.parent
    if lib.name != "python3.11":
        pytest.skip("the environment is one of another Python")
    assert place.findings() == {("carrier", str(library / "sitecustomize.py"))}


def test_start_up_code_too_large_to_be_read_is_a_carrier(place: Place) -> None:
    (place.site / "sitecustomize.py").write_bytes(b"#" * (1 << 24) + b"\nimport sglang\n")
    (carrier,) = found(place, "carrier")
    assert "cannot be looked into" in carrier["detail"]


@pytest.mark.parametrize(
    "line",
    ["import hook.far", "import os, hook", "import sys; __import__('hook')", "import hook.far.off"],
)
def test_a_module_that_a_distribution_starts_is_looked_into(place: Place, line: str) -> None:
    said = "from importlib import import_module\nm = import_module('sglang.srt')\n"
    files = {
        "hook/__init__.py": b"",
        "hook/far.py": said.encode(),
        "hook.pth": f"{line}\n".encode(),
    }
    install_fake(place.site, "hook", "1.0", files)
    (carrier,) = found(place, "carrier")
    assert "it speaks of the packages" in carrier["detail"]
    (place.site / "hook" / "far.py").write_text("")
    assert found(place, "carrier") == []


def test_variables_that_change_what_is_compiled_or_served_are_carriers(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "include" / "flashinfer").mkdir(parents=True)
    variables = {
        "CPATH": f"/usr/include:{tmp_path / 'include'}",
        "FLASHINFER_EXTRA_CUDAFLAGS": "-I/overlay",
        "SGLANG_HTTP_SERVER_APP_PATH": "mine:app",
    }
    ran = run("audit", *place.options, **variables)
    assert {f["path"] for f in ran.result["findings"]} == set(variables)


# --- servers ------------------------------------------------------------------------------------

LAUNCH = b"import time\nprint('up', flush=True)\ntime.sleep(120)\n"
PACKAGE = {**FILES["sglang"], "sglang/launch_server.py": LAUNCH}
SERVE = ("-m", "sglang.launch_server", "--port", "31998")


@contextmanager
def server(
    *command: str | Path, cwd: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Iterator[int]:
    """A process that looks like an SGLang server."""
    words = [str(word) for word in command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environ, cwd=cwd, text=True) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "up\n"
            yield child.pid
        finally:
            child.kill()


def found(place: Place, *kinds: str, env: Path | None = None) -> list[dict[str, str]]:
    options = ("--env", env or place.prefix, "--catalogue", place.catalogue, "--output", "json")
    return [f for f in run("audit", *options).result["findings"] if f["kind"] in kinds]


@pytest.fixture
def served(place: Place) -> Place:
    install_fake(place.site, "sglang", "1.0", PACKAGE)
    return place


def aged(site: Path) -> None:
    """As if everything had been installed an hour ago."""
    hour = time.time() - 3600
    for path in (site, *site.rglob("*")):
        os.utime(path, (hour, hour), follow_symlinks=False)


@pytest.mark.parametrize("start", ["python", "env/bin/python", "PYTHONPATH"])
def test_a_server_is_known_however_its_interpreter_was_named(served: Place, start: str) -> None:
    aged(served.site)
    environ = {"PATH": f"{served.prefix}/bin:{os.environ['PATH']}"}
    program = start
    if start == "PYTHONPATH":
        program, environ = sys.executable, {"PYTHONPATH": str(served.site)}
    with server(program, *SERVE, cwd=served.root, environ=environ) as pid:
        assert found(served, "stale-server") == []
        time.sleep(1.1)
        sh(f'sed -i "{SED_A}" {A}', served.site)
        (stale,) = found(served, "stale-server")
    assert f"pid {pid} " in stale["path"] and f"before {A} changed" in stale["detail"]


def test_a_variable_of_another_environment_makes_no_server_one_of_it(
    served: Place, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Place(tmp_path / "other")
    environ = {**os.environ, "VIRTUAL_ENV": str(other.prefix)}
    with server(served.prefix / "bin/python", *SERVE, environ=environ):
        time.sleep(1.1)
        sh(f'sed -i "{SED_A}" {A}', other.site)
        assert found(other, "stale-server") == []


def test_a_server_that_a_package_was_installed_under_is_stale(served: Place) -> None:
    aged(served.site)
    with server(served.prefix / "bin/python", *SERVE):
        assert found(served, "stale-server") == []
        time.sleep(1.1)
        shutil.rmtree(served.site / "sglang")
        shutil.rmtree(served.site / "sglang-1.0.dist-info")
        install_fake(served.site, "sglang", "1.1", PACKAGE)
        (stale,) = found(served, "stale-server", "foreign", "unknown")
    assert "before sglang 1.1 was installed" in stale["detail"]
    with server(served.prefix / "bin/python", *SERVE):
        assert found(served, "stale-server") == [], "installed just before it started"


def test_a_server_under_which_a_checkout_went_on_is_stale(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    (checkout.source / "sglang" / "launch_server.py").write_bytes(LAUNCH)
    commit(checkout, "serve")
    aged(checkout.source)
    aged(checkout.site)
    with server(checkout.prefix / "bin/python", *SERVE):
        assert found(checkout, "stale-server") == []
        time.sleep(1.1)
        (checkout.source / B).write_text("value = 'next'\n")
        commit(checkout, "next")
        (stale,) = found(checkout, "stale-server", "foreign", "unknown")
    assert f"before files of {checkout.source} were written" in stale["detail"]


def commit(checkout: Checkout, message: str) -> None:
    who = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    for words in (("add", "-A"), ("commit", "-q", "-m", message)):
        subprocess.run(["git", *who, "-C", checkout.source, *words], check=True)


def test_a_script_that_patches_and_becomes_the_server_is_not_stale(served: Place) -> None:
    """Its process is older than the patch; the server's own processes are not."""
    aged(served.site)
    launch = served.site / "sglang" / "launch_server.py"
    workers = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {!r}]).wait()\n"
    install_fake(
        served.site, "sglang", "1.0", {**PACKAGE, A: workers.format(LAUNCH.decode()).encode()}
    )
    aged(served.site)
    script = (
        f"sleep 1.2; echo 'import sglang.a' > {launch};"
        f" exec {served.prefix}/bin/python {' '.join(SERVE)}"
    )
    with server("sh", "-c", script) as pid:
        assert found(served, "stale-server") == []
        assert {f["path"] for f in found(served, "foreign")} == {"sglang/launch_server.py"}
        time.sleep(1.1)
        sh(f"echo >> {B}", served.site)
        (stale,) = found(served, "stale-server")
        assert f"pid {pid} " in stale["path"]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        subprocess.run(["kill", *children], check=True)


def test_a_server_that_imports_from_its_users_own_site_is_of_that(
    served: Place, tmp_path: Path
) -> None:
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    if (base.parents[1] / "pyvenv.cfg").exists():
        pytest.skip("there is no interpreter but that of a virtual environment")
    prefix = tmp_path / "home" / ".local"
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = prefix / "lib" / name / "site-packages"
    install_fake(site, "sglang", "1.0", PACKAGE)
    aged(site)
    environ = {"HOME": str(prefix.parent)}
    with server(base, *SERVE, environ=environ), server(served.prefix / "bin/python", *SERVE):
        time.sleep(1.1)
        sh(f'sed -i "{SED_A}" {A}', site)
        assert len(found(served, "stale-server", env=prefix)) == 1
        assert found(served, "stale-server", "foreign") == []


def test_a_server_that_hides_its_environment_is_unknown(
    served: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of another user does."""
    environ = {"PATH": f"{served.prefix}/bin:{os.environ['PATH']}"}
    with server("python", *SERVE, environ=environ) as pid:
        seen = [s for s in live.look().servers if s.pid == pid]
        assert len(seen) == 1 and list(live.untold(live.Live(tuple(seen), ()))) == []
        hidden = seen[0]._replace(environ={})
        monkeypatch.setattr(proc, "read", lambda _pid, _name: b"")
        (finding,) = live.untold(live.Live((hidden,), ()))
        assert (finding.kind, finding.path) == (Kind.UNKNOWN, f"pid {pid}")


def test_a_worker_of_another_program_is_known_by_what_it_maps(served: Place) -> None:
    library = served.site / "kernel" / "kernel.so"
    install_fake(served.site, "kernel", "1.0", {"kernel/kernel.so": b"x" * 4096})
    aged(served.site)
    work = (
        "import mmap, sys, time; f = open(sys.argv[1], 'rb');"
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); print('up', flush=True);"
        "time.sleep(120)"
    )
    script = 'import os, sys; os.execv(sys.argv[1], ["sglang::scheduler_TP0", *sys.argv[2:]])'
    python = served.prefix / "bin/python"
    with server(sys.executable, "-c", script, python, "-c", work, library) as pid:
        time.sleep(1.1)
        sh(f'sed -i "{SED_A}" {A}', served.site)
        (stale,) = found(served, "stale-server")
        assert stale["path"] == f"pid {pid} (sglang::scheduler_TP0)"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_server_in_a_container_that_has_another_directory_there_is_not_ours(
    served: Place, tmp_path: Path
) -> None:
    (tmp_path / "image").mkdir()
    image = Place(tmp_path / "image")
    install_fake(image.site, "sglang", "1.0", PACKAGE)
    script = f"mount --bind {image.prefix} {served.prefix} && exec {served.prefix}/bin/python "
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    if subprocess.run([*words, f"mount --bind {image.prefix} {served.prefix}"]).returncode:
        pytest.skip("mounts are not allowed here")
    with server(*words, script + " ".join(SERVE)):
        time.sleep(1.1)
        sh(f'sed -i "{SED_A}" {A}', served.site)
        assert found(served, "stale-server") == []


@pytest.mark.parametrize("how", ["-m", "empty entry", "-P"])
def test_a_copy_in_the_working_directory_of_a_server_is_named(
    served: Place, tmp_path: Path, how: str
) -> None:
    for path, data in PACKAGE.items():
        (tmp_path / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / path).write_bytes(data)
    words: tuple[str | Path, ...] = (served.prefix / "bin/python", *SERVE)
    environ = dict(os.environ)
    if how == "-P":
        if sys.version_info < (3, 11):
            pytest.skip("Python has this option from 3.11 on")
        words = (words[0], "-P", *words[1:])
    elif how == "empty entry":
        words = (words[0], served.site / "sglang" / "launch_server.py")
        environ["PYTHONPATH"] = ":/nowhere"
    with server(*words, cwd=tmp_path / "src", environ=environ) as pid:
        copies = found(served, "copies")
    if how == "-P":
        assert copies == []
    else:
        (copy,) = copies
        assert copy["path"] == str(tmp_path / "src" / "sglang")
        assert f"pid {pid} " in copy["detail"] and "looks there first" in copy["detail"]
