"""Does the patched code run? Asked of real processes: what they import, what they have loaded."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sm120patch.caches.builds import MARKER, SHELF, UNOWNED
from sm120patch.model import Engagement
from sm120patch.verify import engagement as engaged
from sm120patch.verify.loaded import judge_module, mapped_files, matching
from sm120patch.verify.origin import foreign, origin_of
from sm120patch.verify.processes import descendants
from tests.support.environments import create_venv
from tests.support.serving import GOOD, Host, apply, wait_for
from tests.support.simulated import FLAG

# --- what a server imports ---------------------------------------------------------------------


def package(directory: Path, name: str = "sglang") -> Path:
    (directory / name).mkdir(parents=True)
    (directory / name / "__init__.py").write_text("raise SystemExit('it must not be imported')\n")
    return directory / name


@pytest.fixture
def site(tmp_path: Path) -> Path:
    found = create_venv(tmp_path / "env")
    package(found)
    return found


WAITING = "import sys, time; sys.stdout.write('up\\n'); sys.stdout.flush(); time.sleep(300)"


@contextmanager
def running(*words: str | Path, cwd: Path, **environ: str) -> Iterator[int]:
    """Start a process and wait until it says a line."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    with subprocess.Popen(
        list(map(str, words)), cwd=cwd, env={**variables, **environ}, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            yield process.pid
        finally:
            process.kill()


def test_a_server_of_the_environment_imports_its_copy(tmp_path: Path, site: Path) -> None:
    with running(tmp_path / "env/bin/python", "-c", WAITING, cwd=tmp_path) as pid:
        origin = origin_of([pid], ["flashinfer", "sglang"])
    assert (origin.pid, dict(origin.places)) == (pid, {"sglang": str(site / "sglang")})
    assert foreign(origin, {"sglang": str(site / "sglang"), "flashinfer": "/x"}) == []


Shadow = Callable[[Path], tuple[list[str | Path], Path, dict[str, str]]]


def by_variable(tmp_path: Path) -> tuple[list[str | Path], Path, dict[str, str]]:
    return ["-c", WAITING], tmp_path, {"PYTHONPATH": str(tmp_path / "other")}


def by_directory(tmp_path: Path) -> tuple[list[str | Path], Path, dict[str, str]]:
    (tmp_path / "other" / "serve.py").write_text(WAITING)
    return ["-u", "-m", "serve"], tmp_path / "other", {}


def by_script(tmp_path: Path) -> tuple[list[str | Path], Path, dict[str, str]]:
    (tmp_path / "other" / "serve.py").write_text(WAITING)
    return ["-W", "ignore", "other/serve.py"], tmp_path, {}


@pytest.mark.parametrize("shadow", [by_variable, by_directory, by_script])
def test_another_copy_that_wins_is_noticed(tmp_path: Path, site: Path, shadow: Shadow) -> None:
    other = package(tmp_path / "other")
    words, cwd, environ = shadow(tmp_path)
    with running(tmp_path / "env/bin/python", *words, cwd=cwd, **environ) as pid:
        origin = origin_of([pid], ["sglang"])
    (found,) = foreign(origin, {"sglang": str(site / "sglang")})
    assert found == (
        f"the server (PID {pid}) imports sglang from {other}, not from {site / 'sglang'}"
    )


def test_an_isolated_interpreter_does_not_look_at_the_variable(tmp_path: Path, site: Path) -> None:
    package(tmp_path / "other")
    words, cwd, environ = by_variable(tmp_path)
    with running(tmp_path / "env/bin/python", "-I", *words, cwd=cwd, **environ) as pid:
        assert origin_of([pid], ["sglang"]).places == {"sglang": str(site / "sglang")}


def test_the_interpreter_of_another_environment_is_noticed(tmp_path: Path, site: Path) -> None:
    other = package(create_venv(tmp_path / "second"))
    environ = {"PATH": f"{tmp_path / 'second/bin'}:{os.environ['PATH']}"}
    with running("python", "-c", WAITING, cwd=tmp_path, **environ) as pid:
        assert origin_of([pid], ["sglang"]).places == {"sglang": str(other)}


def test_a_wrapper_is_passed_over_for_the_python_that_it_started(
    tmp_path: Path, site: Path
) -> None:
    python = tmp_path / "env/bin/python"
    script = f'"{python}" -c "{WAITING}" & wait'
    with running("/bin/sh", "-c", script, cwd=tmp_path) as pid:
        family = descendants(pid)
        assert len(family) == 2 and family[0] == pid
        origin = origin_of(family, ["sglang"])
        assert origin.pid == family[1] and origin.places == {"sglang": str(site / "sglang")}
        os.kill(family[1], 9)


def test_what_cannot_be_asked_is_said_and_no_fault(tmp_path: Path) -> None:
    with running("/bin/sh", "-c", "echo up; exec sleep 300", cwd=tmp_path) as pid:
        wait_for(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        origin = origin_of([pid, 2**22 + 1], ["sglang"])
    assert origin.pid is None and "is no Python" in str(origin.unknown)
    assert "cannot be looked at" in str(origin.unknown)
    assert foreign(origin, {"sglang": "/x"}) == []


UNLABELLED = """
import sys
from sm120patch.simhost import __main__, app

simulated = app.Simulation.info
app.Simulation.info = lambda self: {
    k: v for k, v in simulated(self).items() if k not in ("simulated", "clock")
}
sys.exit(__main__.main(sys.argv[1:]))
"""
"""A server whose word is taken for real."""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_verification_ends_where_the_server_imports_another_copy(host: Host) -> None:
    package(host.root / "other")
    (host.root / "other" / "server.py").write_text(UNLABELLED)
    options = host.server_command(GOOD, "--time-scale", "16")[3:]
    command = ["{tool_python}", str(host.root / "other" / "server.py"), *options]
    done = apply(host, GOOD, command=command, kind="real")
    assert done.code == 10 and done.error["code"] == "other-copy", done.err
    assert f"imports sglang from {host.root / 'other' / 'sglang'}" in done.error["message"]
    assert host.facts() == host.pristine and host.servers() == []


# --- what it has loaded ------------------------------------------------------------------------


def so_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF" + bytes(4092))
    return path


@contextmanager
def mapped(path: Path) -> Iterator[None]:
    """Map a file into this process, as loading a library does."""
    with path.open("rb") as stream:
        view = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    yield
    view.close()


def test_files_that_processes_have_mapped_are_seen(tmp_path: Path) -> None:
    library = so_file(tmp_path / "odd\x85name, with a space" / "fast.so")
    assert str(library) not in (mapped_files([os.getpid()]) or ())
    with mapped(library):
        files = mapped_files([os.getpid(), 2**22 + 1]) or frozenset()
        assert str(library) in files
        assert matching(files, r"a space/fast\.so$") == [str(library)]
        library.unlink()
        gone = mapped_files([os.getpid()]) or frozenset()
        assert f"{library} (deleted)" in gone and matching(gone, "fast") == []
    assert mapped_files([2**22 + 1]) is None


def test_a_module_counts_only_in_the_build_of_the_content(tmp_path: Path) -> None:
    ops = tmp_path / ".cache/flashinfer/0.6.3/120a/cached_ops"
    build = so_file(ops / "comm" / "comm.so")
    now = build.stat().st_mtime

    def judged(path: Path | str, swapped_at: float) -> tuple[bool, str]:
        return judge_module([str(path)], "comm", swapped_at)

    assert judged(build, now - 60)[0] and "after the patch" in judged(build, now - 60)[1]
    assert not judged(build, now + 60)[0] and "before the patch" in judged(build, now + 60)[1]

    (build.parent / MARKER).write_text(json.dumps({"key": "abc", "module": "comm"}))
    assert judged(build, now + 60) == (True, f"{build}, the build of this content")
    (build.parent / MARKER).write_text(json.dumps({"key": UNOWNED, "module": "comm"}))
    assert "while files were being exchanged" in judged(build, now - 60)[1]

    shelved = so_file(tmp_path / ".cache/flashinfer" / SHELF / "key/0.6.3/120a/comm/comm.so")
    assert "put away" in judged(shelved, now - 60)[1]
    prebuilt = so_file(tmp_path / "flashinfer_jit_cache/jit_cache/comm/comm.so")
    assert "prebuilt" in judged(prebuilt, now - 60)[1]
    assert "replaced after" in judged(f"{build} (deleted)", now - 60)[1]
    assert judged(ops / "other" / "other.so", now - 60) == (
        False, "no process of the server has loaded comm.so"
    )  # fmt: skip
    both = judge_module([str(build), str(prebuilt)], "comm", now - 60)
    assert both[0] is False, "one process with the wrong module is one too many"


def test_probes_of_a_set_are_told_with_what_was_found(tmp_path: Path) -> None:
    library = so_file(tmp_path / "cached_ops" / "comm" / "comm.so")
    probes = [Engagement("sglang", ">=0", loaded=r"/comm\.so$", jit_module="comm"),
              Engagement("sglang", ">=0", loaded=r"/absent\.so$")]  # fmt: skip
    with mapped(library):
        seen = engaged.process_seen(probes, [os.getpid()], time.time() - 60)
    assert [(s.probe, s.ok) for s in seen] == [
        (r"loaded: //comm\.so$/", True), (r"loaded: //absent\.so$/", False),
        ("JIT module: comm", True),
    ]  # fmt: skip
    assert engaged.failures(seen) == [r"no process of the server has loaded a file //absent\.so$/"]
    (hidden,) = engaged.process_seen(probes[1:], [2**22 + 1], 0.0)
    assert not hidden.ok and "cannot be read" in hidden.found
    assert engaged.process_seen([Engagement("sglang", ">=0", log="x")], [1], 0.0) == []


@pytest.mark.parametrize(
    ("probe", "verdict"), [("libm[-.0-9]*so", "improved"), ("libnothing", "not-engaged")]
)
def test_a_set_is_engaged_when_the_server_has_loaded_what_it_names(
    host: Host, probe: str, verdict: str
) -> None:
    path = host.catalogue / "manifests" / "runtime-gate.toml"
    path.write_text(path.read_text() + f"loaded = '{probe}'\n")
    (host.root / "server.py").write_text(UNLABELLED)
    options = host.server_command(GOOD, "--time-scale", "16")[3:]
    command = ["{tool_python}", str(host.root / "server.py"), *options]
    done = host.run("apply", "fusion", "--gpu", "12.0", "--profile",
                    host.profile(GOOD, command=command, kind="rehearsal",
                                 verify="margin = 0.5\nblocks = 1"))  # fmt: skip
    found = done.result["verification"]
    words = {item["probe"]: item for item in found["engagement"]}
    assert words[f"loaded: /{probe}/"]["ok"] is (verdict == "improved"), done.err
    assert words["server_info: enable_flashinfer_allreduce_fusion"]["found"] == "True"
    assert (found["verdict"] == "not-engaged") is (verdict == "not-engaged")
    assert done.code == (8 if verdict == "not-engaged" else 0)
    assert FLAG in found["commands"]["patched"] and sys.executable in found["commands"]["patched"]
