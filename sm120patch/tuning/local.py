"""Turn a record into a local patch set that adds FlashInfer's tuning file. Pure."""

from __future__ import annotations

import json
import re

from sm120patch.model import sha256_hex
from sm120patch.tuning.record import CUTLASS_VERSION, Record, dump, range_for

VARIABLE = "FLASHINFER_AUTOTUNER_LOAD_FROM_FILE"
"""Without it FlashInfer never looks for a tuning file."""
SGLANG = "<0.5.12rc0"
"""Releases of SGLang that do not tune by themselves and keep the result."""


def file_path(record: Record) -> str:
    """Path below the import root at which FlashInfer looks for the file of this device."""
    device = record.device.replace(" ", "_")
    version = CUTLASS_VERSION.replace(".", "_")
    return f"flashinfer/tuning_configs/v{version}_trtllm_fused_moe_{device}.py"


def config(record: Record) -> bytes:
    """Return the tuning file: a dictionary of what was measured, and where it comes from."""
    valid = f"flashinfer-python {range_for(record.flashinfer)}"
    lines = [
        f"# Measured by FlashInfer {record.flashinfer}'s autotuner on one {record.device}.",
        *(f"# NVFP4 MoE, one rank: {shape}" for shape in record.shapes),
        f"# Up to {record.max_tokens} tokens. For {valid} on this device only.",
        "best_configs = {",
        *(f"    {json.dumps(k)}: ({runner}, {tactic})," for k, runner, tactic in record.entries),
        "}",
        "",
    ]
    return "\n".join(lines).encode("ascii")


def files(record: Record, set_id: str, today: str) -> dict[str, bytes]:
    """Return the set, relative path below the catalogue -> content; `today` is an ISO date."""
    data = config(record)
    payload = f"{set_id}/{re.sub(r'[^a-z0-9]+', '_', record.device.lower()).strip('_')}.py"
    manifest = _manifest(record, set_id, today, payload, sha256_hex(data))
    return {
        f"tuning/{set_id}.json": dump(record),
        f"patches/{payload}": data,
        f"manifests/{set_id}.toml": manifest.encode(),
    }


def _manifest(record: Record, set_id: str, today: str, payload: str, digest: str) -> str:
    versions = range_for(record.flashinfer)
    shapes = "\n".join(f"- {shape}" for shape in record.shapes)
    return f'''\
schema = 1

[patch-set]
id = "{set_id}"
revision = 1
title = "FlashInfer: measured CUTLASS MoE tactics for {record.device}"
description = """
Tactics that FlashInfer {record.flashinfer}'s own autotuner measured on this host, for these layers
(NVFP4 weights, as one rank holds them), up to {record.max_tokens} tokens:

{shapes}

Other layers get FlashInfer's default tactic while the variable is set. Measure again after a new
GPU, driver or FlashInfer; the set is for this device and this list of tactics only. It needs
`--moe-runner-backend flashinfer_cutlass`, which it does not switch on.
"""
type = "unofficial"

[host]
compute-capability = ["{record.capability}"]
devices = ["{record.device}"]

[upstream]
status = "inappropriate"
reason = "measured on one host; upstream ships files for B200 and GB200 only"
last-checked = "{today}"

[verification]
goal = "speed"

[[change]]
id = "tactics"
target = "flashinfer-python"
summary = "Add the tuning file of {record.device}"
description = "{len(record.entries)} entries; the record is kept in tuning/{set_id}.json."

[[change.variant]]
versions = "{versions}"
kind = "file"
path = "{file_path(record)}"
payload = "{payload}"
sha256 = "{digest}"
requires = {{ sglang = "{SGLANG}" }}

[[launch]]
target = "flashinfer-python"
versions = "{versions}"
env = {{ {VARIABLE} = "1" }}
strip-env = ["{VARIABLE}"]
'''
