"""Makes copies of real packages in which Hopper is shut out as upstream shuts out SM120.

The copy is the mirror image: wherever upstream names SM90 on the path of the fused all-reduce the
copy names SM120, so that SM90 stands where SM120 stands upstream. The rehearsal sets are the
shipped ones seen in the same mirror: same engines, same files, same order, another architecture.
A driver answer replaces what no text says: in the copy the boards have no NVLink multicast.

Nothing here can be put on real packages: the copies call themselves `+rehearsal.sm90`, and a set
with `host.rehearsal` is refused everywhere else. Writes below the directories it is given.

    python rehearsal.py gate SITE           turn an unpacked site-packages into the mirror image
    python rehearsal.py label SITE          only rename the versions: the code stays as published
    python rehearsal.py catalogue DIR       write the rehearsal sets
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from sm120patch import catalogue, versions
from sm120patch.model import Change, PatchSet, PayloadKind, sha256_hex
from sm120patch.unified import make_diff

LABEL = "+rehearsal.sm90"
RELEASES = {"sglang": "0.5.15.post1", "flashinfer-python": "0.6.12"}
"""The pair that runs on the GPU machine."""
SETS = ("allreduce-arch-gate", "sm120-checks", "allreduce-fusion")
PREFIX = "rehearsal-"

COMMUNICATOR = "sglang/srt/layers/communicator.py"
FUSION = "sglang/srt/layers/flashinfer_comm_fusion.py"
COMMON = "sglang/srt/utils/common.py"
OVERRIDES = "sglang/srt/arg_groups/overrides.py"
MODEL = "sglang/srt/models/qwen3_moe.py"
JIT = "flashinfer/jit/comm.py"
HEADER = "flashinfer/data/include/flashinfer/comm/trtllm_allreduce.cuh"
ACTIVATION = "flashinfer/data/include/flashinfer/activation.cuh"

# --- the mirror --------------------------------------------------------------------------------

_ARCHITECTURES = re.compile(r"sm90(?!\d)|sm120(?!\d|patch)|SM90(?!\d)|SM120(?!\d)|SM12X")
_OTHER = {"sm90": "sm120", "sm120": "sm90", "SM90": "SM120", "SM120": "SM90", "SM12X": "SM9X"}


def mirrored(text: str) -> str:
    """Exchange SM90 and SM120 in identifiers and messages."""
    return _ARCHITECTURES.sub(lambda found: _OTHER[found[0]], text)


def mirrored_lists(text: str) -> str:
    """Exchange the major versions 9 and 12, as numbers of their own."""
    return re.sub(
        r"(?<![\w.])(9|12)(?![\w.])", lambda found: "12" if found[0] == "9" else "9", text
    )


def _within_function(text: str, name: str, change: Callable[[str], str]) -> str:
    start = text.index(f"\ndef {name}(")
    end = text.index("\ndef ", start + 1)
    return text[:start] + change(text[start:end]) + text[end:]


def _jit(text: str) -> str:
    return _within_function(text, "gen_trtllm_comm_module", mirrored_lists)


def _auto_enable(text: str) -> str:
    # Other functions of the file choose kernels that Hopper has and must keep.
    return _within_function(text, "_flashinfer_allreduce_fusion_auto_enable", mirrored)


def _header(text: str) -> str:
    # Never true: what `< 1200` is on SM120.
    return _replaced(text, "(__CUDA_ARCH__ < 1200)", "(__CUDA_ARCH__ < 900)", 13)


_BINDINGS = """        from cuda import cuda as cuda_driver

    return cuda_driver
"""
_WITHOUT_MULTICAST = '''        from cuda import cuda as cuda_driver

    return _WithoutMulticast(cuda_driver)


class _WithoutMulticast:
    """REHEARSAL: the driver as it answers on boards that have no NVLink multicast."""

    def __init__(self, driver):
        self._driver = driver

    def cuDeviceGetAttribute(self, attribute, device):
        wanted = self._driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
        if attribute == wanted:
            return self._driver.CUresult.CUDA_SUCCESS, 0
        return self._driver.cuDeviceGetAttribute(attribute, device)

    def __getattr__(self, name):
        if name.startswith("cuMulticast"):
            refused = self._driver.CUresult.CUDA_ERROR_NOT_SUPPORTED
            return lambda *arguments: (refused, None)
        return getattr(self._driver, name)
'''


def _driver(text: str) -> str:
    return _replaced(text, _BINDINGS, _WITHOUT_MULTICAST, 1)


def _replaced(text: str, old: str, new: str, count: int) -> str:
    if text.count(old) != count:
        raise ValueError(f"{old!r} occurs {text.count(old)} times, not {count}")
    return text.replace(old, new)


GATES: Mapping[str, Callable[[str], str]] = {
    COMMUNICATOR: mirrored,
    FUSION: mirrored,
    OVERRIDES: _auto_enable,
    COMMON: _driver,
    JIT: _jit,
    HEADER: _header,
}
"""File -> what makes its mirror image."""

# --- the copies --------------------------------------------------------------------------------


def label(site: Path) -> None:
    """Rename the versions of both packages below `site`; RECORD agrees with what is there."""
    for name, version in RELEASES.items():
        stem = name.replace("-", "_")
        old = site / f"{stem}-{version}.dist-info"
        new = old.rename(site / f"{stem}-{version}{LABEL}.dist-info")
        _rewrite(new / "METADATA", _versioned(r"(\nVersion: ){}(\n)", version))
        for file in ("_version.py", "_build_meta.py"):
            path = site / name.split("-")[0] / file
            if path.exists():
                _rewrite(path, _versioned(r"""(__version__ = .*["']){}(["'])""", version))
        _record(site, new)


def _versioned(pattern: str, version: str) -> Callable[[str], str]:
    compiled = re.compile(pattern.replace("{}", re.escape(version)))
    return lambda text: compiled.sub(rf"\g<1>{version}{LABEL}\g<2>", text, count=1)


def gate(site: Path) -> list[str]:
    """Turn the packages below `site` into the mirror image; return the files that differ now."""
    for path, change in GATES.items():
        _rewrite(site / path, change)
    label(site)
    return sorted(GATES)


def plant(site: Path, path: str, change: Callable[[str], str]) -> None:
    """Publish one file of a labelled copy differently: RECORD agrees with it."""
    _rewrite(site / path, change)
    package = path.split("/")[0]
    (info,) = site.glob(f"{package}*{LABEL}.dist-info")
    _record(site, info)


def _rewrite(path: Path, change: Callable[[str], str]) -> None:
    text = path.read_bytes().decode()
    new = change(text)
    if new == text:
        raise ValueError(f"{path} would not change")
    mode = path.stat().st_mode
    path.unlink()  # it may be a hard link into another copy
    path.write_bytes(new.encode())
    path.chmod(mode)


def _record(site: Path, info: Path) -> None:
    """Write RECORD anew from what is on disk; lines of files that are not there are dropped."""
    record = info / "RECORD"
    old_name = info.name.replace(LABEL, "")
    rows = []
    with record.open(newline="") as stream:
        for path, _digest, _size in csv.reader(stream):
            here = path.replace(old_name + "/", info.name + "/", 1)
            if here == f"{info.name}/RECORD":
                rows.append([here, "", ""])
            elif (site / here).is_file():
                rows.append([here, *_entry((site / here).read_bytes())])
    record.unlink()
    with record.open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


def _entry(data: bytes) -> tuple[str, str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(data))


# --- the sets ----------------------------------------------------------------------------------


def write_catalogue(root: Path) -> list[str]:
    """Write the mirrored sets below `root`; return their names."""
    known = catalogue.load()
    for name in SETS:
        _write_set(root, known.get(name))
    return [PREFIX + name for name in SETS]


def _write_set(root: Path, real: PatchSet) -> None:
    name = PREFIX + real.id
    lines = [
        "schema = 1",
        "[patch-set]",
        *_table({
            "id": name,
            "revision": real.revision,
            "title": f"REHEARSAL on SM90: {real.title}",
            "description": f"The mirror image of `{real.id}`, for copies made by "
            "benchmarks/gpu/rehearsal.py. It says nothing about SM120.",
            "type": "unofficial",
        }),
        "[host]",
        *_table({"compute-capability": ["9.0"], "min-gpus": real.min_gpus, "rehearsal": True}),
        "[relations]",
        *_table({"depends": [PREFIX + d for d in real.depends]}),
        "[upstream]",
        *_table({"status": "inappropriate", "reason": "a rehearsal",
                 "last-checked": real.last_checked}),
        "[verification]",
        *_table({"goal": real.verification.goal.value, "margin": real.verification.margin,
                 "repeats": real.verification.repeats, "blocks": real.verification.blocks}),
    ]  # fmt: skip
    for change in real.changes:
        if change.optional:
            continue
        lines += _change(root, name, change)
    lines += [*_running(real), *_compiled(real)]
    write(root / "manifests" / f"{name}.toml", "\n".join(lines) + "\n")


def _change(root: Path, owner: str, change: Change) -> list[str]:
    version = RELEASES[change.target]
    found = [v for v in change.variants if _within(version, v.versions)]
    if not found:
        return []  # a window says that there is nothing to do in this release
    (variant,) = found
    payload = f"{owner}/{Path(variant.payload).name}"
    text = _mirrored_payload(variant.data.decode(), variant.kind, variant.path)
    write(root / "patches" / payload, text)
    fields: dict[str, object] = {
        "versions": versions.exactly(version),
        "kind": variant.kind.value,
        "path": variant.path,
        "payload": payload,
        "sha256": sha256_hex(text.encode()),
    }
    if variant.absent:
        fields["absent"] = [_header_gate(text) for text in variant.absent]
    lines = [
        "[[change]]",
        *_table({"id": change.id, "target": change.target,
                 "summary": mirrored(change.summary), "description": "As in the real set."}),
        "[[change.variant]]",
        *_table(fields),
    ]  # fmt: skip
    if variant.present:
        inner = ", ".join(f"{json.dumps(k)} = {v}" for k, v in variant.present.items())
        lines.append(f"present = {{ {inner} }}")
    return lines


def _within(version: str, text: str) -> bool:
    found = versions.installed(version)
    return found is not None and found in versions.parse(text)


def _mirrored_payload(text: str, kind: PayloadKind, path: str) -> str:
    if kind is PayloadKind.DIFF:
        return _header_gate(text)
    return mirrored_lists(text) if path == JIT else mirrored(text)


def _header_gate(text: str) -> str:
    return text.replace("(__CUDA_ARCH__ < 1200)", "(__CUDA_ARCH__ < 900)")


def _running(real: PatchSet) -> list[str]:
    """Launch options and engagement as they are: they belong to the release, not to the GPU."""
    if not real.changes:
        return []  # a bundle takes over those of the sets below it
    lines = []
    for options in real.launch:
        if _within(RELEASES[options.target], options.versions):
            strip = ", ".join(f"{json.dumps(k)} = {v}" for k, v in options.strip.items())
            lines += ["[[launch]]", *_table({"target": options.target,
                      "versions": versions.exactly(RELEASES[options.target]),
                      "args": list(options.args)}), f"strip = {{ {strip} }}"]  # fmt: skip
    for probe in real.engagement:
        if _within(RELEASES[probe.target], probe.versions):
            info = ", ".join(f"{k} = {json.dumps(v)}" for k, v in probe.server_info.items())
            lines += ["[[engagement]]", *_table({"target": probe.target,
                      "versions": versions.exactly(RELEASES[probe.target]),
                      "log": probe.log, "log-absent": probe.log_absent})]  # fmt: skip
            lines += [f"server-info = {{ {info} }}"] if info else []
    return lines


def _compiled(real: PatchSet) -> list[str]:
    """What SM120's object is proved by is what SM90's is proved by in the mirror."""
    lines = []
    for check in real.compile:
        if not _within(RELEASES[check.target], check.versions):
            continue
        lines += ["[[compile]]", *_table({
            "target": check.target, "versions": versions.exactly(RELEASES[check.target]),
            "module": check.module, "generator": check.generator})]  # fmt: skip
        for count in check.ptx:
            if count.arch == "120a":
                lines += ["[[compile.ptx]]", *_table({
                    "change": count.change, "source": count.source, "arch": "90a",
                    "text": count.text, "before": count.before, "after": count.after})]  # fmt: skip
    return lines


def _table(fields: Mapping[str, object]) -> list[str]:
    """TOML of plain values; JSON's strings, booleans and lists are TOML's."""
    return [f"{k} = {json.dumps(v)}" for k, v in fields.items() if v is not None]


def write(path: Path, text: str) -> None:
    """Write a file, its directories included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


# --- sets that only take or save time ----------------------------------------------------------

_HEAD = """schema = 1
[patch-set]
id = "{name}"
revision = 1
title = "REHEARSAL: {title}"
description = "For copies made by benchmarks/gpu/rehearsal.py. It says nothing about SM120."
type = "unofficial"
[host]
compute-capability = ["9.0"]
rehearsal = true
[upstream]
status = "inappropriate"
reason = "a rehearsal"
last-checked = "2026-11-29"
[verification]
goal = "{goal}"
margin = 0.03
repeats = 3
blocks = 2
[[change]]
id = "edit"
target = "{target}"
summary = "{title}"
description = "A rehearsal."
[[change.variant]]
versions = "{versions}"
kind = "diff"
path = "{path}"
payload = "{name}/edit.patch"
sha256 = "{sha256}"
"""


def write_edit(
    root: Path,
    name: str,
    title: str,
    published: Path,
    path: str,
    edit: Callable[[str], str],
    *,
    conditions: str,
    goal: str = "no-regression",
    log: str = "",
) -> None:
    """Write a set that makes `edit` of one file below the site-packages `published`."""
    target = "sglang" if path.startswith("sglang/") else "flashinfer-python"
    before = (published / path).read_bytes().decode()
    after = edit(before)
    diff = make_diff(path, before.encode(), after.encode())
    text = _HEAD.format(
        name=PREFIX + name, title=title, goal=goal, target=target, path=path,
        versions=versions.exactly(RELEASES[target]), sha256=sha256_hex(diff.encode()),
    ) + conditions + "\n"  # fmt: skip
    if log:
        text += f'[[engagement]]\ntarget = "{target}"\n'
        text += f'versions = "{versions.exactly(RELEASES[target])}"\nlog = {json.dumps(log)}\n'
    write(root / "patches" / f"{PREFIX}{name}" / "edit.patch", diff)
    write(root / "manifests" / f"{PREFIX}{name}.toml", text)


def main(arguments: list[str]) -> int:
    """Run one of the three commands of the docstring."""
    commands: dict[str, Callable[[Path], object]] = {
        "gate": gate, "label": label, "catalogue": write_catalogue,
    }  # fmt: skip
    if len(arguments) != 2 or arguments[0] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    print(commands[arguments[0]](Path(arguments[1])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
