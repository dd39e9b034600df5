"""JSON-ready account of what a verification was asked to do, and how far it went. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from sm120patch.verify.profile import Profile, Workload
from sm120patch.verify.record import Record, identity
from sm120patch.verify.schedule import Schedule
from sm120patch.verify.verdict import Decision


def account(
    profile: Profile, record: Record, schedule: Schedule, decision: Decision
) -> dict[str, object]:
    """Verdict, worth, profile, schedule and servers; the measurements are `Record.summary`."""
    info = next((block.info for block in reversed(record.blocks) if block.info), {})
    return {
        **decision.as_dict(),
        "kind": record.kind.value,
        "profile": {"path": profile.origin, "digest": profile.digest},
        "seed": profile.seed,
        "server_seed": info.get("seed"),
        "time_scale": info.get("time_scale"),
        "server": identity(info),
        "clock": "virtual" if virtual(info) else "wall",
        "order": [arm.value for arm in schedule.order],
        "schedule": {
            "least": schedule.least,
            "most": schedule.most,
            "null_run": schedule.null,
            "style": schedule.style,
        },
        "noise_keys": {
            workload.name: profile.noise_key(workload)
            for workload in profile.workloads
            if workload.name in record.workloads
        },
        "blocks_run": [block.arm.value for block in record.blocks],
    }


def workload_dict(workload: Workload) -> dict[str, object]:
    """Shape of a workload as it was measured."""
    return {
        "name": workload.name,
        "input_len": workload.input_len,
        "output_len": workload.output_len,
        "concurrency": workload.concurrency,
        "prompts": workload.prompts,
        "repeats": workload.repeats,
        "warmup": workload.warmup_requests,
    }


def virtual(info: Mapping[str, object]) -> bool:
    """Only a server that calls itself simulated may bring its own clock."""
    return info.get("simulated") is True and info.get("clock") == "virtual"


def served_model(info: Mapping[str, object]) -> str | None:
    """Name of the served model, from SGLang's fields or from `/v1/models`."""
    for key in ("served_model_name", "model_path"):
        if isinstance(value := info.get(key), str):
            return value
    data = info.get("data")
    first = data[0] if isinstance(data, list) and data else None
    name = first.get("id") if isinstance(first, dict) else None
    return name if isinstance(name, str) else None
