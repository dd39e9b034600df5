"""Garbage, and good input that somebody damaged: an answer, never a traceback or a way out."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sm120patch.verify import http
from tests.support.command import run, run_after
from tests.support.hostile import TARGETS, seeds
from tests.support.place import Place, checked

# What fails is shown; that it is long must not hide it.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

# --- every reader ------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, good: list[bytes]) -> bytes:
    """A good input with a few bytes changed, cut out, doubled or put in."""
    data = bytearray(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["set", "cut", "double", "put", "end"]))
        if kind == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 400))] * draw(st.integers(1, 3))
        elif kind == "put":
            data[at:at] = draw(st.binary(max_size=12))
        elif kind == "end":
            del data[at:]
    return bytes(data)


def fuzz(name: str, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.one_of(st.binary(max_size=2000), damaged(seeds(name))))
    @example(b"")
    @example(b"\xff" * 64)
    @example(b"[" * 20_000)
    @example(b'{"a":' * 20_000)
    @example(b"a = " + b"[" * 20_000)
    @example(b"x = " + b"9" * 10_000)
    def every(data: bytes) -> None:
        TARGETS[name](data)

    every()


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_damaged_input_gets_an_answer(name: str) -> None:
    fuzz(name, 60)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_much_damaged_input_gets_an_answer(name: str) -> None:
    fuzz(name, 3000)


# --- HTTP --------------------------------------------------------------------------------------


def answering(reply: bytes) -> tuple[str, threading.Thread, socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(5)
            try:
                connection.recv(4096)
                connection.sendall(reply)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/", thread, listener


GOOD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.one_of(st.binary(max_size=300), damaged([GOOD])))
@example(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 50_000)
@example(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 500 + b"\r\n")
@example(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n")
@example(b"HTTP/1.1 999999999999999999999 \xff\r\n\r\n")
def test_whatever_a_server_answers_it_is_an_answer(reply: bytes) -> None:
    url, thread, listener = answering(reply)
    try:
        found = http.get_object(url, timeout=5)
        assert found is None or isinstance(found, dict)
    finally:
        listener.close()
        thread.join()


# --- bombs: bounded memory ----------------------------------------------------------------------

BOUNDED = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))"
"""Commands that read a bomb get one gigabyte of addresses; they may not need it all."""


def deep(depth: int) -> bytes:
    return b"x = " + b"[" * depth + b"]" * depth


BOMBS = {
    "deep arrays": deep(200_000),
    "deep tables": b"[" + b".".join([b"a"] * 100_000) + b"]\n",
    "deep key": b".".join([b"a"] * 100_000) + b" = 1\n",
    "a long integer": b"x = 0x" + b"f" * 40_000,
    "many tables": b"".join(b"[[change]]\nid = 'c%d'\n" % n for n in range(30_000)),
    "one number": b"x = " + b"9" * 900_000,
    "large": b"# " + b"x" * (64 << 20),
}


@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_a_manifest_that_is_a_bomb_is_a_fault(place: Place, bomb: str) -> None:
    (place.catalogue / "manifests" / "bomb.toml").write_bytes(BOMBS[bomb])
    ran = checked(run_after(BOUNDED, "status", *place.options))
    assert ran.code in (0, 3), ran.out
    ran = checked(run_after(BOUNDED, "apply", "one", "--no-verify", *place.options))
    assert ran.code == 3
    assert any("bomb.toml" in fault for fault in ran.error["details"]["faults"])
    place.assert_nothing_written()


@pytest.mark.parametrize("what", ["many hunks", "one huge hunk count"])
def test_a_diff_that_is_a_bomb_is_refused(place: Place, what: str) -> None:
    from sm120patch.model import sha256_hex

    head = b"--- a/sglang/a.py\n+++ b/sglang/a.py\n"
    hunk = b"@@ -1,1 +1,1 @@\n-line_0 = 0\n+line_0 = 1\n"
    data = head + (
        hunk * 20_000 if what == "many hunks" else b"@@ -1,999999999 +1,9999999999 @@\n-x\n"
    )
    patch = place.catalogue / "patches" / "one" / "first.patch"
    manifest = place.catalogue / "manifests" / "one.toml"
    manifest.write_text(
        manifest.read_text().replace(sha256_hex(patch.read_bytes()), sha256_hex(data))
    )
    patch.write_bytes(data)
    ran = checked(run_after(BOUNDED, "apply", "one", "--no-verify", *place.options))
    assert ran.code in (3, 5), ran.out
    place.assert_nothing_written()


@pytest.mark.parametrize("content", [b"[" * 400_000, b'{"files": ' * 50_000])
def test_a_journal_that_is_a_bomb_stops_every_change(place: Place, content: bytes) -> None:
    place.stage("one")
    after = place.facts()
    (place.state / "journal.json").write_bytes(content)
    for command in (("apply", "two", "--no-verify"), ("recover",), ("status",)):
        assert checked(run_after(BOUNDED, *command, *place.options)).code == 7
    assert place.facts() == after


def test_names_cannot_drive_the_terminal(place: Place) -> None:
    """Escape sequences in a catalogue, a ledger and a file name are shown, not sent."""
    evil = "\x1b]0;pwned\x07\x1b[2J\u202e"
    (place.site / "sglang" / f"x{evil}.py").write_text("added = True\n")
    for form in (("audit",), ("status",), ("list",), ("show", f"no{evil}set")):
        words = [*place.options[:-2]] if form[0] not in ("list", "show") else place.options[2:4]
        ran = run(*form, *words)
        for stream in (ran.out, ran.err):
            assert "\x1b" not in stream and "\x07" not in stream and "\u202e" not in stream
