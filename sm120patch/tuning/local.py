"""Turn a record into a local patch set: a tuning file, or a JSON cache and its reader. Pure."""

from __future__ import annotations

import json
import re

from sm120patch import versions
from sm120patch.model import sha256_hex
from sm120patch.tuning import cache
from sm120patch.tuning.record import CUTLASS_VERSION, Record, dump, range_for

VARIABLE = "FLASHINFER_AUTOTUNER_LOAD_FROM_FILE"
"""Without it FlashInfer never looks for a tuning file."""
SGLANG = "<0.5.12rc0"
"""Releases of SGLang that do not tune by themselves and keep the result."""

_OTHERS = {
    True: "Other layers get FlashInfer's default tactic while the variable is set.",
    False: "Other layers are measured at start as before.",
}


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
    device = re.sub(r"[^a-z0-9]+", "_", record.device.lower()).strip("_")
    if record.cache is None:
        payloads = dict([_payload(set_id, f"{device}.py", config(record))])
        changes = _tuning_file(record, set_id, payloads)
    else:
        name = f"sm120patch_{set_id}_{device}.json"
        payloads = dict(
            [
                _payload(set_id, name, cache.encode(record.cache)),
                _payload(set_id, "load.py", _reader(record, name)),
            ]
        )
        changes = _json_cache(record, set_id, name, payloads)
    return {
        f"tuning/{set_id}.json": dump(record),
        **{f"patches/{name}": data for name, data in payloads.items()},
        f"manifests/{set_id}.toml": (_head(record, set_id, today) + changes).encode(),
    }


def _payload(set_id: str, name: str, data: bytes) -> tuple[str, bytes]:
    """Path below `patches` and content. The digest in the name keeps an earlier set whole."""
    stem, _, suffix = name.rpartition(".")
    return f"{set_id}/{stem}-{sha256_hex(data)[:12]}.{suffix}", data


def _reader(record: Record, name: str) -> bytes:
    """Codemod that lets the autotuner load the cache when it comes into being."""
    up = '"..", ' if _is_package(record.flashinfer) else ""
    return f'''\
"""Load the tactics that were measured on this host into FlashInfer's autotuner.

`load_configs` itself ignores them where its versions or the GPU's name differ from those measured.
"""

from __future__ import annotations

from sm120patch.codemod import Codemod, Function, Site, has, insert_after

GET = Function("AutoTuner.get")
MADE = "cls._instance = AutoTuner()"
LOADED = """cls._instance.load_configs(
    os.path.join(
        os.path.dirname(__file__), {up}"tuning_configs", "{name}"
    )
)"""

CODEMOD = Codemod(
    sites=(Site(GET, insert_after(MADE, LOADED)),),
    after=(has(GET, LOADED),),
)
'''.encode("ascii")


def _is_package(flashinfer: str) -> bool:
    version = versions.installed(flashinfer)
    return version is not None and version in versions.parse(">=0.6.15rc0")


def _json_cache(record: Record, set_id: str, name: str, payloads: dict[str, bytes]) -> str:
    where = "autotuner/autotuner.py" if _is_package(record.flashinfer) else "autotuner.py"
    data, reader = payloads
    window = cache.window(record.flashinfer)
    return f'''
[[change]]
id = "tactics"
target = "flashinfer-python"
summary = "Add the measured tactics of {record.device}"
description = "{record.count} entries; the record is kept in tuning/{set_id}.json."

[[change.variant]]
versions = "{window}"
kind = "file"
path = "flashinfer/tuning_configs/{name}"
payload = "{data}"
sha256 = "{sha256_hex(payloads[data])}"

[[change]]
id = "load"
target = "flashinfer-python"
summary = "Load them when the autotuner comes into being"
description = """
FlashInfer's own reader; what it finds is not measured again at start. SGLang's cache of tactics is
put aside while the set is on: it would win, and after a revert it would still hold these.
"""
tactics = true

[[change.variant]]
versions = "{window}"
kind = "codemod"
path = "flashinfer/{where}"
payload = "{reader}"
sha256 = "{sha256_hex(payloads[reader])}"

[[engagement]]
target = "flashinfer-python"
versions = "{window}"
log = 'Loaded {record.count} configs from .*/{re.escape(name)}'
'''


def _head(record: Record, set_id: str, today: str) -> str:
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

{_OTHERS[record.cache is None]} Measure again after a new
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
'''


def _tuning_file(record: Record, set_id: str, payloads: dict[str, bytes]) -> str:
    versions = range_for(record.flashinfer)
    ((payload, data),) = payloads.items()
    return f'''
[[change]]
id = "tactics"
target = "flashinfer-python"
summary = "Add the tuning file of {record.device}"
description = "{record.count} entries; the record is kept in tuning/{set_id}.json."

[[change.variant]]
versions = "{versions}"
kind = "file"
path = "{file_path(record)}"
payload = "{payload}"
sha256 = "{sha256_hex(data)}"
requires = {{ sglang = "{SGLANG}" }}

[[launch]]
target = "flashinfer-python"
versions = "{versions}"
env = {{ {VARIABLE} = "1" }}
strip-env = ["{VARIABLE}"]
'''
