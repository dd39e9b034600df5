"""The field sets on the published files at the edges of their windows, judged from outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sm120patch import catalogue
from sm120patch.catalogue import Catalogue
from sm120patch.model import (
    Changed,
    Refused,
    Unchanged,
    Variant,
    Window,
)
from tests.patches import field_judges as judges
from tests.patches.field_judges import GPUS, SM89, SM90, SM100, SM120, SM121, Gpu
from tests.patches.lines import line_edits
from tests.support.wheels import shipped

pytestmark = pytest.mark.network

COMMON = "sglang/srt/utils/common.py"
SM12X = (SM120, SM121)
OTHERS = (SM89, SM90, SM100)

INKLING = ["+from sglang.srt.utils.common import is_sm120_supported",
           '-            "num_stages": 4,',
           '+            "num_stages": 3 if is_sm120_supported() else 4,']  # fmt: skip
INKLING_SM121 = [
    "-from sglang.srt.utils.common import is_sm121",
    "+from sglang.srt.utils.common import is_sm120_supported, is_sm121",
    '-            "num_stages": 3 if is_sm121() else 4,',
    '+            "num_stages": 3 if is_sm120_supported() or is_sm121() else 4,',
]
BACKEND = 'runner.server_args.attention_backend == "flashinfer"'
ADMIT = [
    "-        from sglang.srt.utils import is_blackwell, is_npu",
    "+        from sglang.srt.utils import is_blackwell, is_npu, is_sm120_supported",
    "+                    or (",
    "+                        is_sm120_supported()",
    f"+                        and {BACKEND}",
    "+                    )",
]


def asserted(sign: str, backends: str, also: str = "", option: str = "") -> str:
    return (
        f'{sign}                ), "{backends} on Blackwell GPUs for hybrid GDN models, use'
        f' --attention-backend {option}{also}to specify the backend."'
    )


NOW = "flashinfer backend are the only supported backends"
GDN = [
    *ADMIT,
    asserted(
        "-",
        "triton or trtllm_mha backend are the only supported backends",
        "or --attention-backend trtllm_mha ",
        "triton ",
    ),
    asserted("+", f"triton, trtllm_mha or, on SM12x, {NOW}"),
]
GDN_TRITON = [
    *ADMIT,
    asserted("-", "triton backend is the only supported backend", option="triton "),
    asserted("+", f"triton or, on SM12x, {NOW}"),
]
FP8 = """\
+
+
+@functools.lru_cache(maxsize=None)
+def _has_low_shared_memory() -> bool:
+    \"\"\"Whether a block has too little shared memory for the FP8 defaults (99 KB on SM12x).\"\"\"
+    if _is_hip or not torch.cuda.is_available():
+        return False
+    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
+    limit = getattr(properties, "shared_memory_per_block_optin", None)
+    return limit is not None and limit < 128 * 1024
+            if _has_low_shared_memory():
+                config = {
+                    "BLOCK_SIZE_M": 64,
+                    "BLOCK_SIZE_N": 128,
+                    "BLOCK_SIZE_K": 256,
+                    "GROUP_SIZE_M": 64,
+                    "num_warps": 4,
+                    "num_stages": 2,
+                }""".splitlines()
OFF = [
    "-DEEPGEMM_SCALE_UE8M0 = DEEPGEMM_BLACKWELL",
    "+DEEPGEMM_SCALE_UE8M0 = DEEPGEMM_BLACKWELL and not is_sm120_supported()",
]
UTILS = "from sglang.srt.utils import get_device_sm"
CLASS = [
    '+    FLASHINFER_B12X = "flashinfer_b12x"',
    "+",
    "+    def is_flashinfer_b12x(self) -> bool:",
    "+        return self == Fp4GemmRunnerBackend.FLASHINFER_B12X",
]
SUFFIXED = 'ArchInfo(major, minor, "a" if major == 12 and not is_hip_runtime() else "")'
DP = "not self.enable_dp_attention"
EDITS: list[tuple[str, str, list[str], list[str]]] = [
    ("b12x-fp4-gemm", "backend", ["0.5.19", "0.5.23*"], CLASS),
    ("b12x-fp4-gemm", "choice", ["0.5.19", "0.5.20", "0.5.23*"], ['+    "flashinfer_b12x",']),
    ("b12x-fp4-gemm", "autotune", ["0.5.19", "0.5.23*"],
     ["+        or get_fp4_gemm_runner_backend().is_flashinfer_b12x()"]),
    ("inkling-num-stages", "num-stages", ["0.5.16", "0.5.17"], INKLING),
    ("inkling-num-stages", "num-stages", ["0.5.18*", "0.5.20", "0.5.23*"], INKLING_SM121),
    ("fp8-moe-smem", "default-config",
     ["0.5.2rc1", "0.5.4.post2", "0.5.10.post1*", "0.5.11", "0.5.13.post1*"], FP8),
    ("gdn-backend-assert", "flashinfer", ["0.5.4.post2", "0.5.5.post1"], GDN_TRITON),
    ("gdn-backend-assert", "flashinfer", ["0.5.5.post2", "0.5.9*"], GDN),
    ("jit-arch-suffix", "suffix", ["0.5.10rc0", "0.5.11*", "0.5.14", "0.5.15.post1"],
     ['-    _CUDA_ARCH = ArchInfo(major, minor, "")', f"+    _CUDA_ARCH = {SUFFIXED}"]),
    ("ue8m0-off", "scale-format", ["0.5.4.post2", "0.5.6.post2"],
     [f"-{UTILS}, is_blackwell", f"+{UTILS}, is_blackwell, is_sm120_supported", *OFF]),
    ("ue8m0-off", "scale-format", ["0.5.7", "0.5.9*"],
     [f"-{UTILS}, is_blackwell_supported", f"+{UTILS}, is_blackwell_supported, is_sm120_supported",
      *OFF]),
    ("ue8m0-off", "scale-format", ["0.5.11", "0.5.12.post1*"], ["+    is_sm120_supported,", *OFF]),
    ("allreduce-autoenable-off", "auto-enable", ["0.5.4.post2", "0.5.5"],
     [f"-                if {DP}:", f"+                if is_sm100_supported() and {DP}:"]),
    ("allreduce-autoenable-off", "auto-enable", ["0.5.5.post2", "0.5.6.post2"],
     [f"-                if {DP} and self.nnodes == 1:",
      f"+                if is_sm100_supported() and {DP} and self.nnodes == 1:"]),
    ("allreduce-autoenable-off", "auto-enable", ["0.5.7*"],
     ["-            and (is_sm90_supported() or is_blackwell_supported())",
      "+            and (is_sm90_supported() or is_sm100_supported())"]),
    ("fi-sm12x-family", "family", ["0.6.6", "0.6.8.post1*", "0.6.10.post1"],
     ["-    major, minor = get_compute_capability(device)",
      '-    return major == 12 and minor == 0 and version_at_least(torch.version.cuda, "12.9")',
      "+    major, _ = get_compute_capability(device)",
      '+    return major == 12 and version_at_least(torch.version.cuda, "12.9")']),
]  # fmt: skip
"""Set, change, releases (those of the fast run starred), every line that goes and comes there."""


def releases(*starred: str) -> list[Any]:
    slow = [() if name.endswith("*") else pytest.mark.slow for name in starred]
    return [
        pytest.param(name.removesuffix("*"), marks=marks)
        for name, marks in zip(starred, slow, strict=True)
    ]


def edges() -> Iterator[Any]:
    for set_id, change_id, starred, lines in EDITS:
        for release in releases(*starred):
            (version,) = release.values
            name = f"{set_id}-{change_id}-{version}"
            yield pytest.param(set_id, change_id, version, lines, id=name, marks=release.marks)


def of(set_id: str, change_id: str | None = None) -> list[Any]:
    """The releases of `EDITS` for one set."""
    found = [e for e in EDITS if e[0] == set_id and change_id in (None, e[1])]
    return [release for entry in found for release in releases(*entry[2])]


@pytest.fixture(scope="module")
def known() -> Catalogue:
    return catalogue.load()


def choose(
    known: Catalogue, set_id: str, change_id: str, version: str, flashinfer: str = "0.7.2"
) -> tuple[Variant | Window | None, str]:
    change = known.get(set_id).change(change_id)
    assert change is not None
    return catalogue.choose(change, {"flashinfer-python": flashinfer, change.target: version})


def variant_for(known: Catalogue, set_id: str, change_id: str, version: str) -> Variant:
    variant, reason = choose(known, set_id, change_id, version)
    assert isinstance(variant, Variant), reason
    return variant


def both(known: Catalogue, set_id: str, change_id: str, version: str) -> tuple[bytes, bytes]:
    """The file of a change as published and as patched."""
    variant = variant_for(known, set_id, change_id, version)
    before = shipped(variant.path, version)
    result = catalogue.edit(variant, before)
    assert isinstance(result, Changed), result
    return before, result.data


# --- every payload -------------------------------------------------------------------------------


@pytest.mark.parametrize(("set_id", "change_id", "version", "lines"), list(edges()))
def test_payload_changes_its_lines_and_nothing_else(
    known: Catalogue, set_id: str, change_id: str, version: str, lines: list[str]
) -> None:
    variant = variant_for(known, set_id, change_id, version)
    before, after = both(known, set_id, change_id, version)
    compile(after, variant.path, "exec", dont_inherit=True)
    assert sorted(line_edits(before, after)) == sorted(lines)
    assert isinstance(catalogue.edit(variant, after), Unchanged), "twice is not the same as once"
    assert catalogue.satisfied(variant, after) and not catalogue.satisfied(variant, before)
    dos = catalogue.edit(variant, before.replace(b"\n", b"\r\n"))
    assert isinstance(dos, Changed) and dos.data == after.replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    ("set_id", "change_id", "last", "then", "outcome"),
    [
        pytest.param("fp8-moe-smem", "default-config", "0.5.13.post1", "0.5.14", Refused),
        pytest.param("ue8m0-off", "scale-format", "0.5.12.post1", "0.5.13", Unchanged),
        pytest.param("ue8m0-off", "scale-format", "0.5.12.post1", "0.5.18", Unchanged),
        pytest.param("gdn-backend-assert", "flashinfer", "0.5.9", "0.5.10.post1", Refused),
        pytest.param("allreduce-autoenable-off", "auto-enable", "0.5.7", "0.5.8", Unchanged),
        pytest.param("fi-sm12x-family", "family", "0.6.10.post1", "0.6.12", Unchanged),
        pytest.param("inkling-num-stages", "num-stages", "0.5.17", "0.5.18", Refused),
        pytest.param("b12x-fp4-gemm", "choice", "0.5.19", "0.5.23", Refused),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("ue8m0-off", "scale-format", "0.5.12.post1", "0.5.19", Unchanged),
                ("ue8m0-off", "scale-format", "0.5.12.post1", "0.5.20", Refused),
                ("gdn-backend-assert", "flashinfer", "0.5.9", "0.5.10rc0", Refused),
                ("gdn-backend-assert", "flashinfer", "0.5.5.post1", "0.5.5.post2", Refused),
                ("gdn-backend-assert", "flashinfer", "0.5.9", "0.5.5.post1", Refused),
                ("allreduce-autoenable-off", "auto-enable", "0.5.6.post2", "0.5.7", Refused),
                ("inkling-num-stages", "num-stages", "0.5.18", "0.5.17", Refused),
                ("fi-sm12x-family", "family", "0.6.10.post1", "0.6.11", Unchanged),
            )
        ),
    ],
)
def test_by_content_alone_a_payload_keeps_out_of_other_releases(
    known: Catalogue, set_id: str, change_id: str, last: str, then: str, outcome: type
) -> None:
    variant = variant_for(known, set_id, change_id, last)
    assert isinstance(catalogue.edit(variant, shipped(variant.path, then)), outcome)


@pytest.mark.slow
def test_files_that_moved_are_not_where_the_variant_of_the_release_before_looks(
    known: Catalogue,
) -> None:
    for set_id, change_id, last, then in (
        ("jit-arch-suffix", "suffix", "0.5.15.post1", "0.5.16"),
        ("inkling-num-stages", "num-stages", "0.5.16", "0.5.17"),
        ("fp8-moe-smem", "default-config", "0.5.10.post1", "0.5.11"),
    ):
        with pytest.raises(AssertionError, match=f"{then} has no"):
            shipped(variant_for(known, set_id, change_id, last).path, then)


@pytest.mark.parametrize(
    ("set_id", "change_id", "version", "outcome"),
    [
        ("b12x-fp4-gemm", "backend", "0.5.18", None),
        ("b12x-fp4-gemm", "backend", "0.5.24", None),
        ("inkling-num-stages", "num-stages", "0.5.15.post1", "not-needed"),
        ("inkling-num-stages", "num-stages", "0.5.24", None),
        ("fp8-moe-smem", "default-config", "0.5.2rc0", None),
        ("fp8-moe-smem", "default-config", "0.5.14", "upstream"),
        ("fp8-moe-smem", "default-config", "0.5.23", "upstream"),
        ("gdn-backend-assert", "flashinfer", "0.5.3rc0", None),
        ("gdn-backend-assert", "flashinfer", "0.5.4.post1", "not-needed"),
        ("gdn-backend-assert", "flashinfer", "0.5.10rc0", "upstream"),
        ("jit-arch-suffix", "suffix", "0.5.8.post1", "not-needed"),
        ("jit-arch-suffix", "suffix", "0.5.9", "not-needed"),
        ("jit-arch-suffix", "suffix", "0.5.16", "upstream"),
        ("ue8m0-off", "scale-format", "0.5.1", None),
        ("ue8m0-off", "scale-format", "0.5.4.post1", "not-needed"),
        ("ue8m0-off", "scale-format", "0.5.13", "upstream"),
        ("ue8m0-off", "scale-format", "0.5.19", "upstream"),
        ("ue8m0-off", "scale-format", "0.5.20", None),
        ("ue8m0-off", "scale-format", "0.5.99", None),
        ("allreduce-autoenable-off", "auto-enable", "0.5.4.post1", "not-needed"),
        ("allreduce-autoenable-off", "auto-enable", "0.5.8", "upstream"),
        ("allreduce-autoenable-off", "auto-enable", "0.5.10rc0", "not-needed"),
        ("allreduce-autoenable-off", "auto-enable", "0.5.10", "upstream"),
        ("fi-sm12x-family", "family", "0.6.5", "not-needed"),
        ("fi-sm12x-family", "family", "0.6.11", "upstream"),
        ("fi-sm12x-family", "family", "0.7.4", "upstream"),
    ],
)
def test_windows_end_where_they_say(
    known: Catalogue, set_id: str, change_id: str, version: str, outcome: str | None
) -> None:
    window, reason = choose(known, set_id, change_id, version)
    assert not isinstance(window, Variant)
    assert (None if window is None else window.outcome) == outcome
    assert reason


def test_the_refusal_names_what_upstream_decided(known: Catalogue) -> None:
    reason = (
        "upstream decided the other way round: from 0.5.20 SGLang uses DeepGEMM's kernels for"
        " SM120, and they want UE8M0"
    )
    assert choose(known, "ue8m0-off", "scale-format", "0.5.20") == (None, reason)


def test_b12x_needs_its_companion(known: Catalogue) -> None:
    assert choose(known, "b12x-fp4-gemm", "backend", "0.5.19", flashinfer="0.6.17") == (
        None,
        "needs flashinfer-python >=0.6.18, found 0.6.17",
    )


# --- b12x-fp4-gemm -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", releases("0.5.19", "0.5.23*"))
def test_b12x_reaches_flashinfer_by_its_own_name(known: Catalogue, version: str) -> None:
    before, after = both(known, "b12x-fp4-gemm", "backend", version)
    with pytest.raises(ValueError, match="flashinfer_b12x"):
        judges.fp4_backends(before)("flashinfer_b12x")
    backends: Any = judges.fp4_backends(after)
    b12x = backends("flashinfer_b12x")
    assert b12x.get_flashinfer_backend() == "b12x"
    assert b12x.is_flashinfer() and b12x.is_flashinfer_b12x()
    asked = [n for n in vars(backends) if n.startswith("is_") and getattr(b12x, n)()]
    assert sorted(asked) == ["is_flashinfer", "is_flashinfer_b12x"]
    old: Any = judges.fp4_backends(before)
    for member in old:
        new = backends(member.value)
        assert new.get_flashinfer_backend() == member.get_flashinfer_backend()
        assert not new.is_flashinfer_b12x()
        assert all(getattr(new, n)() == getattr(member, n)() for n in vars(old) if n[:3] == "is_")
    assert [judges.fp4_auto(data, gpu) for data in (before, after) for gpu in GPUS] == [
        "marlin", "marlin", "flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_cutlass",
    ] * 2  # fmt: skip


@pytest.mark.parametrize("version", releases("0.5.19", "0.5.20", "0.5.23*"))
def test_b12x_is_a_choice_beside_the_others(known: Catalogue, version: str) -> None:
    before, after = map(judges.fp4_choices, both(known, "b12x-fp4-gemm", "choice", version))
    assert after == ["auto", "flashinfer_b12x", *before[1:]]
    backends = judges.fp4_backends(both(known, "b12x-fp4-gemm", "backend", version)[1])
    assert set(after) == {member.value for member in backends}


@pytest.mark.parametrize("version", releases("0.5.19", "0.5.23*"))
def test_b12x_is_tuned_and_no_other_backend_more_than_before(
    known: Catalogue, version: str
) -> None:
    backends = judges.fp4_backends(both(known, "b12x-fp4-gemm", "backend", version)[1])
    before, after = both(known, "b12x-fp4-gemm", "autotune", version)
    for member in backends:
        tuned = judges.fp4_tunes(after, member)
        assert tuned == (member.value == "flashinfer_b12x" or judges.fp4_tunes(before, member))
        assert tuned == (member.value[11:] in ("b12x", "cutlass", "cutedsl"))


# --- shared memory -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", of("inkling-num-stages"))
def test_inklings_tiles_fit_on_sm12x_and_stay_elsewhere(known: Catalogue, version: str) -> None:
    before, after = both(known, "inkling-num-stages", "num-stages", version)
    common = shipped(COMMON, version)
    assert judges.inkling_tiles(before, common, SM120) == {16: 110592, 128: 98304}
    for gpu in SM12X:
        assert judges.inkling_tiles(after, common, gpu) == {16: 73728, 128: 98304}
        assert 98304 <= gpu.shared_memory < 110592
    for gpu in (SM90, SM100):
        assert judges.inkling_tiles(after, common, gpu) == {16: 110592, 128: 98304}


@pytest.mark.parametrize("version", releases("0.5.18*", "0.5.23"))
def test_upstream_has_inkling_right_on_sm121_alone(version: str) -> None:
    data = shipped("sglang/kernels/ops/moe/inkling_moe.py", version)
    common = shipped(COMMON, version)
    assert judges.inkling_tiles(data, common, SM121)[16] == 73728
    assert judges.inkling_tiles(data, common, SM120)[16] == 110592


TOKENS = (1, 64, 128, 129, 4096)


@pytest.mark.parametrize("version", of("fp8-moe-smem"))
def test_fp8_defaults_fit_where_there_is_little_and_stay_elsewhere(
    known: Catalogue, version: str
) -> None:
    before, after = both(known, "fp8-moe-smem", "default-config", version)
    assert [judges.shared_bytes(judges.fp8_default(before, SM120, t), 1) for t in TOKENS] == [
        73728, 73728, 73728, 147456, 147456,
    ]  # fmt: skip
    for gpu in (SM89, *SM12X):
        found = [judges.shared_bytes(judges.fp8_default(after, gpu, t), 1) for t in TOKENS]
        assert found == [73728, 73728, 73728, 49152, 49152]
        assert max(found) <= gpu.shared_memory
    for other in (SM90, SM100, None):
        for tokens in TOKENS:
            config = judges.fp8_default(after, other, tokens)
            assert config == judges.fp8_default(before, other, tokens)


@pytest.mark.parametrize("version", releases("0.5.14*"))
def test_upstream_falls_back_to_the_same_tile(known: Catalogue, version: str) -> None:
    path = variant_for(known, "fp8-moe-smem", "default-config", "0.5.13").path
    _, ours = both(known, "fp8-moe-smem", "default-config", "0.5.13.post1")
    theirs = shipped(path, version)
    for tokens in TOKENS:
        config = judges.fp8_default(theirs, SM120, tokens)
        assert judges.shared_bytes(config, 1) <= SM120.shared_memory
        assert (config == judges.fp8_default(ours, SM120, tokens)) is (tokens > 128)


# --- gates and flags -----------------------------------------------------------------------------

REGISTRY = "sglang/srt/layers/attention/attention_registry.py"


@pytest.mark.parametrize("version", of("gdn-backend-assert"))
def test_gdn_models_start_with_flashinfer_on_sm12x_only(known: Catalogue, version: str) -> None:
    before, after = both(known, "gdn-backend-assert", "flashinfer", version)
    common = shipped(COMMON, version)

    def admits(data: bytes, gpu: Gpu, backend: str) -> bool:
        return judges.gdn_admits(data, common, gpu, backend)

    assert not any(admits(before, gpu, "flashinfer") for gpu in (SM100, *SM12X))
    assert all(admits(after, gpu, "flashinfer") for gpu in (SM89, SM90, *SM12X))
    assert not admits(after, SM100, "flashinfer")
    for backend in ("triton", "trtllm_mha", "fa3"):
        assert all(admits(after, g, backend) == admits(before, g, backend) for g in GPUS)


@pytest.mark.parametrize("version", releases("0.5.4.post1", "0.5.10rc0", "0.5.10.post1*"))
def test_the_neighbours_admit_flashinfer_for_gdn_models(version: str) -> None:
    data, common = shipped(REGISTRY, version), shipped(COMMON, version)
    assert all(judges.gdn_admits(data, common, gpu, "flashinfer") for gpu in SM12X)


@pytest.mark.parametrize("version", of("jit-arch-suffix"))
def test_jit_kernels_are_compiled_for_the_exact_architecture(
    known: Catalogue, version: str
) -> None:
    before, after = both(known, "jit-arch-suffix", "suffix", version)
    plain = ["8.9", "9.0", "10.0", "12.0", "12.1"]
    assert [judges.jit_target(before, gpu) for gpu in GPUS] == plain
    assert [judges.jit_target(after, gpu) for gpu in GPUS] == [*plain[:3], "12.0a", "12.1a"]
    assert judges.jit_target(after, SM120, hip=True) == "12.0"


@pytest.mark.slow
def test_upstream_compiles_for_the_family_or_the_exact_architecture() -> None:
    data = shipped("sglang/jit_kernel/utils/arch.py", "0.5.16")
    assert [judges.jit_target(data, gpu) for gpu in SM12X] == ["12.0f", "12.1a"]


CONFIGURER = "sglang/srt/layers/deep_gemm_wrapper/configurer.py"


@pytest.mark.parametrize("version", of("ue8m0-off"))
def test_scales_are_no_longer_ue8m0_on_sm12x(known: Catalogue, version: str) -> None:
    before, after = both(known, "ue8m0-off", "scale-format", version)
    common = shipped(COMMON, version)

    def flags(data: bytes, *, deep_gemm: bool = True) -> list[bool]:
        return [judges.scales_are_ue8m0(data, common, g, deep_gemm=deep_gemm) for g in GPUS]

    assert flags(before) == [False, False, True, True, True]
    assert flags(after) == [False, False, True, False, False]
    # what the advice says: the variable does it too
    assert flags(before, deep_gemm=False) == [False] * 5


@pytest.mark.parametrize(
    ("version", "on_sm120"),
    [
        pytest.param("0.5.13", False),
        pytest.param("0.5.18", False),
        pytest.param("0.5.23", True),
        pytest.param("0.5.4.post1", False, marks=pytest.mark.slow),
        pytest.param("0.5.19", False, marks=pytest.mark.slow),
        pytest.param("0.5.20", True, marks=pytest.mark.slow),
    ],
)
def test_what_upstream_decides_about_scales_outside_the_window(
    version: str, on_sm120: bool
) -> None:
    data, common = shipped(CONFIGURER, version), shipped(COMMON, version)
    assert judges.scales_are_ue8m0(data, common, SM120) is on_sm120
    assert judges.scales_are_ue8m0(data, common, SM100)


SERVER_ARGS = "sglang/srt/server_args.py"
MODELS = (
    "GptOssForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "Qwen3MoeForCausalLM",
)  # fmt: skip


@pytest.mark.parametrize("version", of("allreduce-autoenable-off"))
def test_the_fusion_is_not_switched_on_by_itself_on_sm12x(known: Catalogue, version: str) -> None:
    before, after = both(known, "allreduce-autoenable-off", "auto-enable", version)
    common = shipped(COMMON, version)

    def models(data: bytes, gpu: Gpu) -> set[str]:
        return {m for m in MODELS if judges.fuses_by_itself(data, common, gpu, m)}

    wrong = set(MODELS) if version == "0.5.7" else {"GptOssForCausalLM"}
    for gpu in SM12X:
        assert models(before, gpu) == wrong
        assert models(after, gpu) == set()
    for gpu in OTHERS:
        assert models(after, gpu) == models(before, gpu)
    assert models(after, SM100) >= {"GptOssForCausalLM", "DeepseekV3ForCausalLM"}


@pytest.mark.parametrize("version", releases("0.5.4.post1", "0.5.8*"))
def test_the_neighbours_leave_the_fusion_off_on_sm12x(version: str) -> None:
    data, common = shipped(SERVER_ARGS, version), shipped(COMMON, version)
    assert not any(judges.fuses_by_itself(data, common, SM120, m) for m in MODELS)
    assert judges.fuses_by_itself(data, common, SM100, "GptOssForCausalLM")


@pytest.mark.parametrize("version", of("fi-sm12x-family"))
def test_sm121_belongs_to_the_family(known: Catalogue, version: str) -> None:
    before, after = both(known, "fi-sm12x-family", "family", version)
    assert [judges.in_family(before, gpu) for gpu in GPUS] == [False, False, False, True, False]
    assert [judges.in_family(after, gpu) for gpu in GPUS] == [False, False, False, True, True]
    assert not judges.in_family(after, Gpu((12, 1), 101376, cuda="12.8"))


@pytest.mark.parametrize("version", releases("0.6.11", "0.6.12*"))
def test_upstream_counts_sm121_into_the_family(version: str) -> None:
    data = shipped("flashinfer/utils.py", version)
    assert [judges.in_family(data, gpu) for gpu in SM12X] == [True, True]


# --- the judges can say no -----------------------------------------------------------------------


def half(
    known: Catalogue, set_id: str, change_id: str, version: str, undo: bytes, by: bytes = b""
) -> bytes:
    """A patched file with one part of the change undone; the payload does not finish it."""
    _, after = both(known, set_id, change_id, version)
    assert after.count(undo) == 1
    data = after.replace(undo, by)
    assert isinstance(catalogue.edit(variant_for(known, set_id, change_id, version), data), Refused)
    return data


@pytest.mark.parametrize(
    ("undo", "by"),
    [(b", is_sm120_supported\n", b"\n"), (b"is_sm120_supported()", b"is_sm120_supported")],
)
def test_the_judge_sees_a_gdn_gate_without_its_import_or_wide_open(
    known: Catalogue, undo: bytes, by: bytes
) -> None:
    data = half(known, "gdn-backend-assert", "flashinfer", "0.5.9", undo, by)
    common = shipped(COMMON, "0.5.9")
    if undo.startswith(b","):
        with pytest.raises(NameError):
            judges.gdn_admits(data, common, SM120, "flashinfer")
    else:
        assert judges.gdn_admits(data, common, SM100, "flashinfer")


def test_the_judge_sees_a_flag_without_its_import(known: Catalogue) -> None:
    undo = b"    is_sm120_supported,\n"
    data = half(known, "ue8m0-off", "scale-format", "0.5.12.post1", undo)
    with pytest.raises(NameError):
        judges.scales_are_ue8m0(data, shipped(COMMON, "0.5.12.post1"), SM120)


def test_the_judge_sees_stages_without_their_import(known: Catalogue) -> None:
    data = half(known, "inkling-num-stages", "num-stages", "0.5.18", b"is_sm120_supported, ")
    with pytest.raises(NameError):
        judges.inkling_tiles(data, shipped(COMMON, "0.5.18"), SM120)


def test_the_judge_sees_a_default_without_its_helper(known: Catalogue) -> None:
    undo = b"def _has_low_shared_memory"
    data = half(known, "fp8-moe-smem", "default-config", "0.5.10.post1", undo, b"def _other")
    with pytest.raises(NameError):
        judges.fp8_default(data, SM120, 4096)


def test_the_judge_sees_a_backend_without_its_member(known: Catalogue) -> None:
    undo = b'    FLASHINFER_B12X = "flashinfer_b12x"\n'
    data = half(known, "b12x-fp4-gemm", "backend", "0.5.23", undo)
    with pytest.raises(ValueError, match="flashinfer_b12x"):
        judges.fp4_backends(data)("flashinfer_b12x")
