"""Whatever sysfs, NVML and the environment say, doctor reads it without a traceback."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sm120patch.catalogue import Catalogue
from sm120patch.doctor import render
from sm120patch.doctor.checks import architectures, gpus, resources, toolkit
from sm120patch.doctor.flags import Known, Setting, idle
from sm120patch.doctor.peers import checks
from sm120patch.doctor.readings import Readings
from sm120patch.doctor.topology import generation, read
from sm120patch.host.bounded import Answer
from sm120patch.host.machine import assemble
from sm120patch.host.probing import acs_redirect
from sm120patch.host.toolkit import ArchRules, arch_list_faults, arch_rules, release, version_pair

TEXT = st.text(max_size=30)
WORD = st.one_of(
    TEXT, st.sampled_from(["32.0 GT/s PCIe", "16", "0", "-1", "255", "DMA", "identity"])
)
NUMBER = st.one_of(st.none(), st.integers(-1, 1 << 70))
HOP = st.fixed_dictionaries(
    {"address": TEXT, "bridge": st.booleans()},
    optional={
        "acs": st.one_of(st.none(), st.booleans()),
        "max_link_speed": WORD, "current_link_speed": WORD,
        "max_link_width": WORD, "current_link_width": WORD,
    },
)  # fmt: skip
PCI = st.one_of(
    st.builds(Answer, st.none(), TEXT),
    st.builds(
        Answer,
        st.fixed_dictionaries(
            {"hops": st.lists(HOP, min_size=1, max_size=4), "root": TEXT},
            optional={"numa_node": WORD, "iommu_type": WORD},
        ),
    ),
)


@st.composite
def readings(draw: st.DrawFn) -> Readings:
    count = draw(st.integers(0, 4))
    facts: dict[str, Any] = {
        "driver": draw(st.one_of(st.none(), TEXT)),
        "reason": draw(TEXT),
        "gpus": [
            {
                "index": n, "name": draw(TEXT), "uuid": draw(TEXT),
                "compute_capability": draw(st.sampled_from(["12.0", "12.1", "9.0", "x"])),
                "memory_bytes": draw(NUMBER), "pci_bus_id": draw(TEXT),
            }
            for n in range(count)
        ],
        "links": [
            [one, other, draw(st.sampled_from(["PIX", "SYS", "NVLINK", "unknown"])), draw(TEXT)]
            for one in range(count) for other in range(one + 1, count)
        ],
    }  # fmt: skip
    toolkit_answer = {
        "home": draw(TEXT), "rule": draw(TEXT), "nvcc": None, "version": draw(st.none() | TEXT),
        "compiler": None, "libraries": {"libcudart.so": draw(st.booleans())}, "ninja": None,
        "cxx": draw(st.none() | TEXT),
    }  # fmt: skip
    memory = {
        "available": draw(NUMBER),
        "group": draw(NUMBER),
        "cpus": draw(st.none() | st.integers(1, 512)),
    }
    return Readings(
        host=assemble(facts, (draw(TEXT), "x"), virtual=draw(st.booleans())),
        cuda=draw(st.none() | TEXT),
        devices=(),
        machine=draw(
            st.builds(Answer, st.none(), TEXT) | st.builds(Answer, st.dictionaries(TEXT, TEXT))
        ),
        pci=tuple(draw(PCI) for _ in range(count)),
        memory=Answer(memory),
        disks={"builds": Answer(None, draw(TEXT))},
        toolkit=Answer(toolkit_answer),
        servers=Answer({"servers": []}),
        environ=draw(
            st.dictionaries(st.sampled_from(["MAX_JOBS", "FLASHINFER_CUDA_ARCH_LIST"]), TEXT)
        ),
    )


@given(readings())
@settings(max_examples=150, deadline=None)
def test_any_readings_are_judged(found: Readings) -> None:
    rules = ArchRules((12, 8))
    judged = [
        *gpus(found), *toolkit(found, rules), *architectures(found, rules), *resources(found),
        *checks(found, read(found)),
    ]  # fmt: skip
    json.dumps([render.check_dict(check) for check in judged])
    shown = render.text(judged, (), (), None)
    assert all(c.isprintable() or c in "\n\t" for c in shown)


@given(st.binary(max_size=600))
@settings(max_examples=150, deadline=None)
def test_any_configuration_space_is_read(config: bytes) -> None:
    assert acs_redirect(config) in (True, False, None)
    assert acs_redirect(bytes(0x100) + config) in (True, False, None)


@given(TEXT, st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_version_a_speed_or_none(word: str, text: str) -> None:
    assert len(version_pair(word)) == 2
    generation(word)
    release(text)
    arch_list_faults(word, ("12.0",), arch_rules(text))


@given(
    st.dictionaries(st.sampled_from(["SGLANG_A", "SGLANG_MOE_CONFIG_DIR", "FLASHINFER_B"]), TEXT)
)
@settings(max_examples=80, deadline=None)
def test_any_environment_is_looked_through(environ: dict[str, str]) -> None:
    nothing = assemble(
        {"gpus": [], "links": [], "driver": None, "reason": "x"}, ("m", "x"), virtual=False
    )
    known = Known(Catalogue({}), {}, {"sglang": "1"}, nothing, frozenset(), {})
    found = idle([Setting("environment", (), environ)], known)
    assert {flag.name for flag in found} == {name for name in environ if name.startswith("SGLANG")}
