from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sm120patch.host import driver, nvml, processes
from sm120patch.host.machine import Gpu, Host, Link, describe, identify, in_container, probe
from sm120patch.host.processes import listening_pid, processes_using, running_sglang_servers
from sm120patch.redaction import redact_arguments, redact_environment, redact_output, redact_text
from sm120patch.verify.processes import listeners
from tests.support.environments import create_venv

WAIT = "import sys, time; print('up', flush=True); time.sleep(60)"


@contextmanager
def running(*command: str | Path, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A child that has printed something, killed at the end."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options
    ) as child:
        assert child.stdout is not None and child.stdout.readline()
        try:
            yield child
        finally:
            child.kill()


# --- machine and GPUs ---------------------------------------------------------------------------


def gpu(index: int, name: str = "NVIDIA RTX PRO 6000 Blackwell", capability: str = "12.0") -> Gpu:
    return Gpu(index, name, f"GPU-{index}", capability, 96 << 30, f"00000000:0{index}:00.0")


def host(
    *gpus: Gpu, links: tuple[Link, ...] = (), virtual: bool = False, machine: str = "m"
) -> Host:
    return Host(machine, "machine-id", gpus, links, "580.1", None, virtual)


def test_a_probe_answers_with_or_without_gpus() -> None:
    found = probe()
    assert found.machine_id and found.fingerprint
    assert bool(found.gpus) != bool(found.reason)
    json.dumps(describe(found))


def test_no_driver_is_an_answer_with_a_reason() -> None:
    if probe().gpus:
        pytest.skip("this host has GPUs")
    facts = nvml.facts()
    assert facts["gpus"] == facts["links"] == facts["processes"] == []
    assert "NVIDIA" in facts["reason"] or "nvidia" in facts["reason"]


def stand_in(monkeypatch: pytest.MonkeyPatch, directory: Path, script: str) -> None:
    """Let a shell script answer in place of the process that asks NVML."""
    shell = directory / "interpreter"
    shell.write_text(f"#!/bin/sh\n{script}\n")
    shell.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(shell))


def test_an_nvml_call_that_never_returns_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, "exec sleep 60")
    assert "did not answer" in nvml.facts(timeout=0.2)["reason"]


def test_an_nvml_process_that_dies_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, tmp_path, "echo 'Segmentation fault' >&2; exit 139")
    assert nvml.facts()["reason"] == "NVML gave no answer: Segmentation fault"
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert "cannot run" in nvml.facts()["reason"]


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ((), ("1-gpus", "bare-metal")),
        ((Link(0, 1, "PXB", "ok"),), ("2-gpus", "bare-metal", "p2p", "one-switch", "pcie")),
        (
            (Link(0, 1, "PHB", "unknown"),),
            ("2-gpus", "bare-metal", "p2p-unknown", "one-host-bridge", "pcie"),
        ),
        ((Link(0, 1, "NVLINK", "ok"),), ("2-gpus", "bare-metal", "p2p", "nvlink")),
        ((Link(0, 1, "NODE", "disabled"),), ("2-gpus", "bare-metal", "no-p2p", "one-node", "pcie")),
        ((Link(0, 1, "unknown", "ok"),), ("2-gpus", "bare-metal", "p2p", "path-unknown")),
        (
            (Link(0, 1, "PIX", "ok"), Link(0, 2, "SYS", "ok"), Link(1, 2, "PHB", "unknown")),
            ("3-gpus", "bare-metal", "p2p-unknown", "cross-node", "pcie"),
        ),
    ],
)
def test_topology_is_told_in_words(links: tuple[Link, ...], words: tuple[str, ...]) -> None:
    count = int(words[0].partition("-")[0])
    assert host(*(gpu(i) for i in range(count)), links=links).topology == words


def test_a_virtual_machine_is_named() -> None:
    assert "virtual-machine" in host(gpu(0), virtual=True).topology


def test_the_fingerprint_follows_machine_models_count_and_topology_only() -> None:
    base = host(gpu(0), gpu(1), links=(Link(0, 1, "PIX", "ok"),))
    replaced = Gpu(1, gpu(1).name, "GPU-other", "12.0", 1, "00000000:99:00.0")
    same = host(gpu(0), replaced, links=base.links)
    assert same.fingerprint == base.fingerprint
    different = [
        host(gpu(0), links=()),
        host(gpu(0), gpu(1, "NVIDIA H200", "9.0"), links=base.links),
        host(gpu(0), gpu(1), links=(Link(0, 1, "SYS", "ok"),)),
        host(gpu(0), gpu(1), links=(Link(0, 1, "PIX", "disabled"),)),
        host(gpu(0), gpu(1), links=base.links, machine="other"),
    ]
    assert len({base.fingerprint, *(h.fingerprint for h in different)}) == 6


def test_capabilities_are_listed_once() -> None:
    mixed = host(gpu(0), gpu(1), gpu(2, "NVIDIA H200", "9.0"))
    assert mixed.compute_capabilities == ("12.0", "9.0")


def test_the_machine_id_of_an_image_is_not_the_machine(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("abc\n")
    assert identify([], tmp_path) == ("abc", "machine-id")
    (tmp_path / ".dockerenv").touch()
    assert in_container(tmp_path)
    assert identify([], tmp_path) == (socket.gethostname(), "hostname")
    by_gpu, source = identify(["b", "a"], tmp_path)
    assert source == "gpus" and by_gpu == identify(["a", "b"], tmp_path)[0]
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/product_uuid").write_text("4C4C4544\n")
    assert identify(["a"], tmp_path) == ("4C4C4544", "dmi")


@pytest.mark.parametrize(
    ("path", "text"),
    [("proc/1/environ", "PATH=/bin\0container=podman\0"), ("proc/1/cgroup", "0::/kubepods/x\n")],
)
def test_containers_are_recognised(tmp_path: Path, path: str, text: str) -> None:
    assert not in_container(tmp_path)
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    assert in_container(tmp_path)


# --- processes ----------------------------------------------------------------------------------


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    site = create_venv(tmp_path / "env")
    (site / "sglang").mkdir()
    (site / "sglang" / "launch_server.py").write_text(WAIT)
    (site / "sglang" / "__init__.py").write_text("")
    return tmp_path / "env"


def found(prefix: Path, pid: int, *roots: Path, caches: tuple[Path, ...] = ()) -> str | None:
    return next((p.why for p in processes_using(roots, prefix, caches) if p.pid == pid), None)


def test_a_server_of_the_environment_is_named_with_secrets_taken_out(prefix: Path) -> None:
    command = (prefix / "bin/python3", "-m", "sglang.launch_server", "--api-key", "s3cret")
    with running(*command) as child:
        live = next(p for p in processes_using([], prefix) if p.pid == child.pid)
    assert live.why == f"runs SGLang with {prefix}"
    assert live.cmdline[-2:] == ("--api-key", "***")
    assert abs(live.create_time - time.time()) < 60


def test_an_interpreter_started_by_name_is_found_through_its_path(prefix: Path) -> None:
    environ = {**os.environ, "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}"}
    command = ("python3", "-m", "sglang.launch_server")
    with running(*command, env=environ, executable=prefix / "bin/python3") as child:
        assert found(prefix, child.pid) == f"runs SGLang with {prefix}"


def test_another_environment_or_program_is_none_of_ours(prefix: Path, tmp_path: Path) -> None:
    with running(prefix / "bin/python3", "-c", WAIT) as child:
        assert found(prefix, child.pid) is None
    with running(prefix / "bin/python3", "-m", "sglang.launch_server") as child:
        assert found(tmp_path / "other", child.pid) is None


def test_whoever_maps_a_build_or_a_package_file_is_named(prefix: Path, tmp_path: Path) -> None:
    cache, package = tmp_path / "cache", tmp_path / "package"
    code = (
        "import mmap, sys\nf = open(sys.argv[1], 'rb')\n"
        "m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n" + WAIT
    )
    for directory, word in ((cache, "JIT build"), (package, "package")):
        directory.mkdir()
        library = directory / "with space.so"
        library.write_bytes(b"x" * 4096)
        with running(sys.executable, "-c", code, library) as child:
            assert found(prefix, child.pid, package, caches=(cache,)) == f"maps {word} {library}"
            library.unlink()
            why = found(prefix, child.pid, package, caches=(cache,))
            assert why == f"maps {word} {library} (deleted)"


def test_holders_of_a_gpu_are_named_even_when_they_are_out_of_sight(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(sys.executable, "-c", WAIT) as child:
        listed = [[0, 2**22 + 7, 3 << 30], [1, 2**22 + 7, None], [0, child.pid, 1 << 30]]
        monkeypatch.setattr(driver, "is_present", lambda: True)
        monkeypatch.setattr(nvml, "facts", lambda: {"processes": listed})
        monkeypatch.setattr(processes, "_may_use_gpu", lambda _: True)
        live = {p.pid: p.why for p in processes_using([], prefix)}
    assert live[child.pid] == "holds GPU 0 (1.0 GiB)"
    assert live[2**22 + 7] == "holds GPU 0 (3.0 GiB), GPU 1, not visible from here"


def test_a_number_of_another_pid_namespace_does_not_accuse_a_bystander(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(sys.executable, "-c", WAIT) as child:
        monkeypatch.setattr(driver, "is_present", lambda: True)
        monkeypatch.setattr(nvml, "facts", lambda: {"processes": [[0, child.pid, 1 << 30]]})
        live = {p.pid: p for p in processes_using([], prefix)}
    assert live[child.pid].why.endswith("not visible from here")
    assert live[child.pid].cmdline == ()


def test_this_process_and_its_ancestors_are_left_out() -> None:
    pids = {p.pid for p in processes_using([Path(sys.prefix)], Path(sys.prefix))}
    assert pids.isdisjoint({os.getpid(), os.getppid()})


def test_the_listener_of_a_port_is_found_with_its_start_time() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        listener = listening_pid(port)
        assert listener is not None and listener.pid == os.getpid()
        assert listener.create_time is not None and listener.create_time < time.time()
    assert listening_pid(port) is None


def test_who_holds_a_port_is_named_without_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "print(server.getsockname()[1], flush=True)\nserver.accept()\n"
    )
    command = (sys.executable, "serve.py", "--api-key", "sesame-5781")
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as child:
        assert child.stdout is not None
        (holder,) = listeners(int(child.stdout.readline()))
        child.kill()
    assert holder.pid == child.pid
    assert "serve.py --api-key" in str(holder) and "sesame" not in str(holder)


def test_running_servers_are_listed_for_init(prefix: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HF_TOKEN": "hf_abcdefghijkl", "MAX_JOBS": "4"}
    command = (prefix / "bin/python3", "-m", "sglang.launch_server", "--port", "31999")
    with running(*command, env=environ, cwd=prefix) as child:
        server = next(s for s in running_sglang_servers() if s.pid == child.pid)
    assert server.cmdline[1:] == ("-m", "sglang.launch_server", "--port", "31999")
    assert (server.port, server.cwd) == (31999, str(prefix))
    assert server.environ["HF_TOKEN"] == "***" and server.environ["MAX_JOBS"] == "4"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/env/bin/python3 -m sglang.launch_server --model-path x", True),
        ("/env/bin/python3 /env/bin/sglang serve --model-path x", True),
        ("sglang serve x", True),
        ("python3.11 /src/python/sglang/launch_server.py", True),
        ("python3 -m sglang.bench_serving", False),
        ("docker run image python3 -m sglang.launch_server", False),
        ("bash -c python3 -m sglang.launch_server", False),
        ("", False),
    ],
)
def test_server_commands_are_recognised(command: str, expected: bool) -> None:
    assert processes.is_server_command(command.split()) is expected


@pytest.mark.parametrize(
    ("arguments", "port"),
    [("--port 8000", 8000), ("--port=8001", 8001), ("", 30000), ("--port", 30000),
     ("--port many", 30000), ("--nccl-port 5", 30000)],
)  # fmt: skip
def test_the_port_is_read_from_the_command_line(arguments: str, port: int) -> None:
    assert processes.port_of(arguments.split()) == port


# --- secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("--api-key abc --port 1", "--api-key *** --port 1"),
        ("--admin-api-key=abc", "--admin-api-key=***"),
        ("--ssl-keyfile-password abc", "--ssl-keyfile-password ***"),
        ("--tokenizer-path /m --max-total-tokens 5", "--tokenizer-path /m --max-total-tokens 5"),
        ("--ssl-keyfile /k", "--ssl-keyfile /k"),
        ("-e HF_TOKEN=abc", "-e HF_TOKEN=***"),
        ("--dist-init-addr tcp://me:pw@host:1", "--dist-init-addr tcp://***@host:1"),
        ("--model hf_abcdefghijklmnop", "--model ***"),
        ("--token --flag", "--token --flag"),
        ('{"api_key":"abc","a":1}', '{"api_key":"***","a":1}'),
    ],
)
def test_secrets_are_taken_out_of_command_lines(given: str, shown: str) -> None:
    assert " ".join(redact_arguments(given.split(" "))) == shown


def test_secrets_are_taken_out_of_environments_and_texts() -> None:
    environ = {
        "AWS_SECRET_ACCESS_KEY": "abc",
        "OPENAI_API_KEY": "abc",
        "TOKENIZERS_PARALLELISM": "false",
        "HTTPS_PROXY": "http://user:pw@proxy:3128",
        "HEADER": "Authorization: Bearer abc.def",
    }
    assert redact_environment(environ) == {
        "AWS_SECRET_ACCESS_KEY": "***",
        "OPENAI_API_KEY": "***",
        "TOKENIZERS_PARALLELISM": "false",
        "HTTPS_PROXY": "http://***@proxy:3128",
        "HEADER": "Authorization: Bearer ***",
    }
    assert redact_text("see https://host/path?x=a@b") == "see https://host/path?x=a@b"


def test_secrets_are_taken_out_of_what_a_program_wrote() -> None:
    environ = {"HF_TOKEN": "abcdefghij", "SGLANG_API_KEY": "short", "MODEL": "some-long-model"}
    said = "args: api_key='xyz', hf=abcdefghij in a short sentence about some-long-model"
    assert redact_output(said, environ) == (
        "args: api_key='***', hf=*** in a short sentence about some-long-model"
    )
    assert redact_output('{"auth_token": "xyz"}', {}) == '{"auth_token": "***"}'


def test_looking_around_costs_no_heavy_import() -> None:
    modules = "sm120patch.environment, sm120patch.host, sm120patch.caches.flashinfer"
    heavy = "{'git', 'psutil', 'pynvml', 'libcst', 'packaging', 'importlib.metadata'}"
    code = (
        f"import sys, {modules}, sm120patch.caches.shelf; sys.exit(str({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == "set()"


def test_a_process_that_renamed_itself_is_named_without_its_blanks() -> None:
    # SGLang's schedulers on a real GPU host: the new title, then blanks to the old length.
    from sm120patch.operations.guarding import _short

    assert _short(("sglang::scheduler_TP0" + " " * 300,)) == "sglang::scheduler_TP0"
    assert _short(("python3", "-m", "sglang.launch_server")) == "python3 -m sglang.launch_server"
