"""FlashInfer's rules for toolkit and architectures, and that the published releases have them."""

from __future__ import annotations

import pytest

from sm120patch.host.probing import acs_redirect
from sm120patch.host.toolkit import (
    ArchRules,
    Toolkit,
    arch_list_faults,
    arch_rules,
    cuda_home,
    release,
    version_pair,
)
from tests.support.wheels import published


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("/a", "/b", "/c/bin/nvcc", True), ("/a", "CUDA_HOME")),
        (("", "/b", "/c/bin/nvcc", True), ("/b", "CUDA_PATH")),
        (("", "", "/usr/local/bin/nvcc", True), ("/usr/local", "`which nvcc`")),
        (("", "", "/nvcc", True), ("/", "`which nvcc`")),
        (("", "", None, True), ("/usr/local/cuda", "the default")),
        (("", "", None, False), ("", "neither CUDA_HOME nor nvcc")),
    ],
)
def test_the_toolkit_is_found_in_flashinfers_order(
    arguments: tuple[str, str, str | None, bool], expected: tuple[str, str]
) -> None:
    found = cuda_home(*arguments)
    assert isinstance(found, Toolkit)
    assert found.path == expected[0] and found.rule.startswith(expected[1])


def test_a_release_is_read_from_what_nvcc_says() -> None:
    assert release("Cuda compilation tools, release 13.0, V13.0.88\n") == "13.0"
    assert release("command not found") is None
    assert version_pair("12.8") < version_pair("12.10") < version_pair("13.0")
    assert version_pair("12") == version_pair("9" * 5000 + ".0") == (0, 0)


OLD, MIDDLE, NEW = "0.6.3", "0.6.8", "0.7.2"


@pytest.mark.network
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.3", ArchRules((12, 8), normalises=False)),
        (OLD, ArchRules((12, 8), normalises=False)),
        (MIDDLE, ArchRules((12, 9), normalises=True)),
        ("0.6.18", ArchRules((12, 9), normalises=True)),
        (NEW, ArchRules((12, 8), normalises=True)),
    ],
)
def test_the_rules_of_published_releases_are_read_off_their_source(
    version: str, expected: ArchRules
) -> None:
    context = published("flashinfer-python", version, "flashinfer/compilation_context.py")
    builder = published("flashinfer-python", version, "flashinfer/jit/cpp_ext.py")
    assert context is not None and builder is not None
    assert arch_rules(context.decode()) == expected
    # The order of `cuda_home`, in the words of the release itself.
    marks = [
        b'os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")',
        b'["which", "nvcc"]',
        b'"/usr/local/cuda"',
    ]
    places = [builder.index(mark) for mark in marks]
    assert places == sorted(places)
    assert b'"bin/nvcc"' in builder and rb"release (\d+\.\d+)," in builder


@pytest.mark.parametrize(
    ("text", "capabilities", "normalises", "fault"),
    [
        ("12.0a", ("12.0",), False, None),
        ("12.0f", ("12.0",), True, None),
        ("9.0a 12.0a", ("12.0", "9.0"), False, None),
        ("12.0", ("12.0",), True, None),
        ("12.0", ("12.0",), False, "without the instructions of 12.0a"),
        ("9.0a", ("12.0",), True, "12.0 is not in it"),
        ("12.0a", ("12.1",), True, "12.1 is not in it"),
        ("12.0a,9.0a", ("12.0",), True, "is no architecture"),
        ("", ("12.0",), True, "is no architecture"),
        ("9.0a", (), True, None),
    ],
)
def test_an_arch_list_is_held_against_the_gpus(
    text: str, capabilities: tuple[str, ...], normalises: bool, fault: str | None
) -> None:
    found = arch_list_faults(text, capabilities, ArchRules((12, 8), normalises=normalises))
    assert (fault is None and found == []) or (fault is not None and fault in found[0])


def space(*capabilities: tuple[int, int, int], size: int = 4096) -> bytes:
    """Configuration space with (identifier, next offset, control) at 0x100 and on."""
    data, offset = bytearray(size), 0x100
    for identifier, following, control in capabilities:
        header = identifier | 1 << 16 | following << 20
        data[offset : offset + 4] = header.to_bytes(4, "little")
        data[offset + 6 : offset + 8] = control.to_bytes(2, "little")
        offset = following
    return bytes(data)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (space((0xD, 0, 0x1D)), True),
        (space((0xD, 0, 0x04)), True),
        (space((0xD, 0, 0x11)), False),
        (space((1, 0x148, 0), (0xD, 0, 0x0C)), True),
        (space((1, 0, 0)), False),
        (space(), False),
        (space(size=64), None),
        (b"", None),
        (space((1, 0x100, 0)), None),
        (space((1, 0xFFC, 0)), False),
    ],
)
def test_acs_is_read_from_configuration_space(config: bytes, expected: bool | None) -> None:
    assert acs_redirect(config) is expected
