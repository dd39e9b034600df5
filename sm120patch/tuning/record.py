"""The record of one autotuner run: what was measured, where, and for which FlashInfer. Pure.

Values are measured or they are not there: nothing here fills a gap. A record is hostile input.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from sm120patch import versions
from sm120patch.tuning import cache

SCHEMA = 1
MAX_BYTES = 4 << 20
"""Largest record that is read."""
CUTLASS_VERSION = "0.1"
"""FlashInfer's `_nvfp4_cutlass_version` in all releases that read a tuning file of ours."""
RANGES = (
    ">=0.4.0,<0.5.3rc0",
    ">=0.5.3rc0,<0.6.5rc0",
    ">=0.6.5rc0,<0.6.6rc0",
    ">=0.6.6rc0,<0.6.7rc0",
    ">=0.6.7rc0,<0.6.8rc0",
    ">=0.6.8rc0,<0.6.10rc0",
    ">=0.6.10rc0,<0.6.11rc0",
    ">=0.6.11rc0,<0.6.13rc0",
)
"""Releases of FlashInfer for which a tactic number and a key mean the same.

They end where the list of SM120 FP4 tactics changes (0.5.3, 0.6.8, 0.6.11), where the search for
the nearest profile does (0.6.5, 0.6.6, 0.6.7), and where the buckets do (0.6.10). Read from the
published packages.
"""
_FIRST, _END = "0.4.0", "0.6.13rc0"
_OPERATIONS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
_DEVICE = r"[A-Za-z0-9][A-Za-z0-9 ._()-]{0,98}[A-Za-z0-9)]"
_MAX_SHAPES = 64


@dataclass(frozen=True)
class Shape:
    """One MoE layer with NVFP4 weights, as one rank holds it."""

    experts: int
    """Experts on this rank."""
    hidden: int
    intermediate: int
    """Intermediate size on this rank."""
    top_k: int
    tp: int = 1
    """Ranks that share an expert. Keys name it from FlashInfer 0.6.18 on."""
    ep: int = 1
    """Ranks that the experts are spread over; likewise."""
    packed: int = 0
    """1 if activations arrive quantized: attention data parallelism with as many experts' ranks."""

    def __str__(self) -> str:
        values = asdict(self)
        given = {n: v for n, v in values.items() if n not in _OPTIONAL or v != _OPTIONAL[n]}
        return ",".join(f"{name.replace('_', '-')}={value}" for name, value in given.items())


_OPTIONAL = {f.name: f.default for f in fields(Shape) if f.default is not MISSING}


@dataclass(frozen=True)
class Record:
    """What FlashInfer's autotuner found on one GPU."""

    flashinfer: str
    device: str
    """Name of the GPU as torch spells it."""
    capability: str
    """`12.0`."""
    shapes: tuple[Shape, ...]
    max_tokens: int
    entries: tuple[tuple[str, int, int], ...] = field(repr=False)
    """Key as FlashInfer spells it, runner, tactic; sorted. Empty where there is a cache."""
    software: dict[str, str] = field(default_factory=dict)
    """Versions of torch, CUDA and the driver, for people."""
    cache: dict[str, Any] | None = field(default=None, repr=False)
    """FlashInfer's JSON cache as `save_configs` wrote it; None for releases that read a file."""

    @property
    def count(self) -> int:
        """Number of measured tactics."""
        return len(self.entries) if self.cache is None else len(self.cache) - 1


def parse_shape(text: str) -> Shape:
    """Read `experts=E,hidden=H,intermediate=I,top-k=K[,tp=T][,ep=E][,packed=1]`.

    Raises ValueError.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        name = name.replace("-", "_")
        if name not in Shape.__dataclass_fields__ or name in found or not value.isascii():
            names = ", ".join(n.replace("_", "-") for n in Shape.__dataclass_fields__)
            raise ValueError(f"{part.strip()!r} is not one of {names}")
        if not value.isdigit() or not _OPTIONAL.get(name, 1) <= int(value) <= 1 << 20:
            raise ValueError(f"{part.strip()!r}: {value!r} is no size")
        found[name] = int(value)
    if missing := [n for n in Shape.__dataclass_fields__ if n not in {*found, *_OPTIONAL}]:
        raise ValueError(f"{text!r} lacks {', '.join(missing)}")
    shape = Shape(**found)
    if problem := _shape_problem(shape):
        raise ValueError(f"{text!r}: {problem}")
    return shape


def _shape_problem(shape: Shape) -> str | None:
    if shape.top_k > shape.experts * shape.ep:
        return "top-k is larger than the number of experts"
    if shape.packed > 1:
        return "packed is 0 or 1"
    if shape.hidden % 32 or shape.intermediate % 32:
        return "hidden and intermediate must be multiples of 32 for NVFP4"
    return None


def range_for(flashinfer: str) -> str:
    """Return the range of releases that a record of this one counts for.

    Raises ValueError that says why there is none.
    """
    version = versions.installed(flashinfer)
    if version is None:
        raise ValueError(f"FlashInfer {flashinfer!r} is no version")
    for text in RANGES:
        if version in versions.parse(text):
            return text
    if version in versions.parse(f"<{_FIRST}"):
        raise ValueError(f"FlashInfer {flashinfer} cannot run its CUTLASS MoE on SM120")
    raise ValueError(
        f"FlashInfer {flashinfer} never finds an entry of a tuning file (its keys have four parts"
        " from 0.6.13 on); it keeps what it measures in a JSON cache"
    )


def read(text: bytes) -> Record | list[str]:
    """Decode a record; every fault at once instead, if there is one."""
    if len(text) > MAX_BYTES:
        return [f"{len(text)} bytes; at most {MAX_BYTES} are read"]
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return [f"not JSON: {error}"]
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return [f"not a record of schema {SCHEMA}"]
    faults: list[str] = []
    record = Record(
        flashinfer=_text(data, "flashinfer", r"[0-9][A-Za-z0-9.!+]*", faults),
        device=_text(data, "device", _DEVICE, faults),
        capability=_text(data, "capability", r"12\.[0-9]", faults),
        shapes=_shapes(data.get("shapes"), faults),
        max_tokens=_integer(data, "max_tokens", 1 << 20, faults),
        entries=() if "cache" in data else _entries(data.get("entries"), faults),
        software=_software(data.get("software", {})),
        cache=cache.checked(data["cache"], faults) if "cache" in data else None,
    )
    faults += _binding_faults(record, data)
    return faults or record


def _binding_faults(record: Record, data: dict[str, Any]) -> list[str]:
    """Compare what the values say of their origin with what the record says."""
    if record.cache is not None:
        return cache.origin_faults(record.cache, record.flashinfer, record.device)
    if data.get("nvfp4_cutlass_version") != CUTLASS_VERSION:
        return [f"nvfp4_cutlass_version: expected {CUTLASS_VERSION!r}"]
    try:
        range_for(record.flashinfer)
    except ValueError as error:
        return [f"flashinfer: {error}"] if record.flashinfer else []
    return []


def dump(record: Record) -> bytes:
    """Encode a record."""
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "flashinfer": record.flashinfer,
        "device": record.device,
        "capability": record.capability,
        "shapes": [asdict(s) for s in record.shapes],
        "max_tokens": record.max_tokens,
        "software": record.software,
    }
    if record.cache is not None:
        data["cache"] = record.cache
    else:
        data["nvfp4_cutlass_version"] = CUTLASS_VERSION
        data["entries"] = [list(entry) for entry in record.entries]
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()


def _text(data: dict[str, Any], key: str, pattern: str, faults: list[str]) -> str:
    value = data.get(key)
    if isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII):
        return value
    faults.append(f"{key}: {value!r} does not match {pattern}")
    return ""


def _integer(data: dict[str, Any], key: str, high: int, faults: list[str]) -> int:
    value = data.get(key)
    if type(value) is int and 0 < value <= high:
        return value
    faults.append(f"{key}: {value!r} is no number in 1..{high}")
    return 0


def _shapes(values: object, faults: list[str]) -> tuple[Shape, ...]:
    if not isinstance(values, list) or not 0 < len(values) <= _MAX_SHAPES:
        faults.append(f"shapes: expected 1 to {_MAX_SHAPES}")
        return ()
    found = []
    for number, value in enumerate(values):
        try:
            found.append(parse_shape(",".join(f"{k}={v}" for k, v in value.items())))
        except (ValueError, AttributeError) as error:
            faults.append(f"shapes[{number}]: {error}")
    return tuple(found)


def _entries(values: object, faults: list[str]) -> tuple[tuple[str, int, int], ...]:
    if not isinstance(values, list) or not values:
        faults.append("entries: nothing was measured")
        return ()
    found: dict[str, tuple[str, int, int]] = {}
    for number, value in enumerate(values):
        if problem := _entry_problem(value):
            faults.append(f"entries[{number}]: {problem}")
        elif value[0] in found:
            faults.append(f"entries[{number}]: its key is there twice")
        else:
            found[value[0]] = (value[0], value[1], value[2])
    return tuple(sorted(found.values()))


def _entry_problem(value: object) -> str | None:
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], str):
        return "is not [key, runner, tactic]"
    if type(value[1]) is not int or value[1] != 0:
        return f"runner {value[1]!r}; the CUTLASS MoE has one, number 0"
    if type(value[2]) is not int or not -1 <= value[2] < 10_000:
        return f"tactic {value[2]!r} is no number of a tactic"
    try:
        key = ast.literal_eval(value[0])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return "its key is no literal"
    # The file is looked up by this text, so it must be spelled as FlashInfer spells it.
    if not isinstance(key, tuple) or len(key) != 3 or str(key) != value[0]:
        return "its key is not a tuple of three as Python prints it"
    if key[0] not in _OPERATIONS or key[1] != "MoERunner" or not _is_profile(key[2]):
        return "its key names no operation of the CUTLASS MoE, or no shapes"
    return None


def _is_profile(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        for shape in value
    )


def _software(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, str)}
