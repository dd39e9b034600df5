"""FlashInfer's JSON cache of measured tactics: what one may hold, and for whom it counts. Pure.

The format is that of `AutoTuner.save_configs` in FlashInfer 0.6.8 to 0.7.4: `_metadata`, and for
each key the name of the runner's class, the tactic and, from 0.7.0, how it was chosen. FlashInfer
itself ignores a cache whose metadata differ from where it runs. A cache is hostile input.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from sm120patch import versions

METADATA = "_metadata"
_BOOKKEEPING = ("_generation", "_records")
"""Who wrote the file last, and records of other kernels: neither is a tactic of the MoE."""
FIRST = "0.6.8rc0"
"""First release with `load_configs`."""
END = "0.7.5rc0"
"""0.7.4 is the newest release whose format was read."""
_OPERATIONS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
_MAX_ENTRIES = 20_000
_MAX_TEXT = 2_000


def is_read_by(flashinfer: str) -> bool:
    """Tell whether this release of FlashInfer reads such a cache."""
    version = versions.installed(flashinfer)
    return version is not None and version in versions.parse(f">={FIRST},<{END}")


def window(flashinfer: str) -> str:
    """Return the range that holds this one release; FlashInfer compares its version as well."""
    version = versions.installed(flashinfer)
    if version is None:
        raise ValueError(f"FlashInfer {flashinfer!r} is no version")
    post = -1 if version.post is None else version.post
    base = str(version).partition(".post")[0]
    return f">={version},<{base}.post{post + 1}"


def checked(value: object, faults: list[str]) -> dict[str, Any]:
    """Return the cache without FlashInfer's bookkeeping; every fault is added to `faults`."""
    if not isinstance(value, dict) or not isinstance(value.get(METADATA), dict):
        faults.append(f"cache: not an object with {METADATA}")
        return {METADATA: {}}
    found: dict[str, Any] = {METADATA: _metadata(value[METADATA], faults)}
    entries = {k: v for k, v in value.items() if k not in (METADATA, *_BOOKKEEPING)}
    if not 0 < len(entries) <= _MAX_ENTRIES:
        faults.append(f"cache: {len(entries)} entries; expected 1 to {_MAX_ENTRIES}")
        return found
    for key in sorted(entries):
        if problem := _key_problem(key) or _value_problem(entries[key]):
            faults.append(f"cache[{key[:80]!r}]: {problem}")
        found[key] = entries[key]
    return found


def origin_faults(cache: dict[str, Any], flashinfer: str, device: str) -> list[str]:
    """Say where the cache contradicts the record that holds it."""
    faults = []
    metadata = cache[METADATA]
    for name, expected in (("flashinfer_version", flashinfer), ("gpu", device)):
        if metadata.get(name) != expected:
            faults.append(
                f"cache: {METADATA}.{name} is {metadata.get(name)!r}, expected {expected!r}"
            )
    if flashinfer and not is_read_by(flashinfer):
        faults.append(f"flashinfer: {flashinfer} is not known to read a JSON cache")
    return faults


def encode(cache: dict[str, Any]) -> bytes:
    """Encode a cache as FlashInfer does, metadata first."""
    return (json.dumps(cache, indent=2) + "\n").encode("ascii")


def _metadata(values: dict[str, Any], faults: list[str]) -> dict[str, str]:
    for name, value in values.items():
        if not isinstance(value, str) or len(value) > _MAX_TEXT or value == "*":
            faults.append(f"cache: {METADATA}.{name} is {value!r}, no value of one environment")
    return dict(sorted(values.items()))


def _key_problem(key: str) -> str | None:
    """Keys are looked up as text, so they are kept as they are; they must only be keys."""
    if len(key) > _MAX_TEXT or not key.isascii() or not key.isprintable():
        return "its key is no short line of ASCII"
    try:
        tree = ast.parse(key, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return "its key is no tuple"
    if not isinstance(tree, ast.Tuple) or len(tree.elts) not in (3, 4):
        return "its key is no tuple of three or four"
    operation, runner = (getattr(part, "value", None) for part in tree.elts[:2])
    if operation not in _OPERATIONS or runner != "MoERunner":
        return "its key names no operation of the CUTLASS MoE"
    allowed = (ast.Tuple, ast.Constant, ast.Attribute, ast.Name, ast.UnaryOp, ast.USub, ast.Load)
    if not all(isinstance(node, allowed) for node in ast.walk(tree)):
        return "its key holds more than names and numbers"
    return None


def _value_problem(value: object) -> str | None:
    if not isinstance(value, list) or not 2 <= len(value) <= 4 or value[0] != "MoERunner":
        return "its value is not [MoERunner, tactic, ...]"
    if type(value[1]) is not int or not -1 <= value[1] < 10_000:
        return f"tactic {value[1]!r} is no number of a tactic"
    if len(json.dumps(value)) > _MAX_TEXT:
        return "its value is too long"
    return None
