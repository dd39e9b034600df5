"""Facts of nodes for `fleet-report`: of real environments, and what may be wrong with them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from sm120patch.fleet.node import NodeFacts
from sm120patch.fleet.parsing import Reading, parse
from tests.support.command import Ran

GATHERED: dict[str, tuple[str, ...]] = {
    "status": (), "audit": (), "doctor": (), "history": ("--limit", "20"), "caches": (),
}  # fmt: skip
Facts = dict[str, Any]
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)
HOW = Reading(NOW, timedelta(days=1))
DEEP = Reading(NOW, timedelta(days=1), deep=True)


def facts_of(
    node: str, prefix: Path, run: Callable[..., Ran], *, groups: tuple[str, ...] = ()
) -> Facts:
    """What the playbook writes for a node whose environment is `prefix`."""
    return {
        "schema": 1,
        "kind": "sm120patch-facts",
        "node": node,
        "groups": list(groups),
        "environment": str(prefix),
        "collected_at": datetime.now(timezone.utc).isoformat(),
        "reachable": True,
        "reason": None,
        "tool": "0.1.0",
        "commands": {name: run(name, *words).json for name, words in GATHERED.items()},
    }


def envelope(command: str, **result: Any) -> dict[str, Any]:
    """What a command prints that has found nothing to complain of."""
    return {"schema": 1, "command": command, "ok": True, "exit_code": 0, "errors": [],
            "result": result}  # fmt: skip


def small(node: str = "gpu-01", *, now: datetime | None = None, **changes: Any) -> Facts:
    """Facts of a node with one set, applied and verified on real GPUs; no command is run."""
    evidence = {"id": 4, "at": "2026-11-20T12:00:00+00:00", "kind": "real", "verdict": "improved",
                "passed": True, "sets": ["one"], "host": "h" * 64, "profile": "p" * 64}  # fmt: skip
    entry = {"id": "one", "state": "applied", "label": "applied", "counts": True, "reason": "",
             "role": "requested", "revision": 1, "with": [], "evidence": evidence}  # fmt: skip
    other = {"id": "two", "state": "absent", "label": "absent", "counts": False, "reason": "",
             "role": "", "revision": 1, "with": [], "evidence": None}  # fmt: skip
    file = {"path": "sglang/a.py", "state": "ours", "sha256": "a" * 64, "changes": ["one/first"],
            "pristine_sha256": "b" * 64, "known_as": ""}  # fmt: skip
    package = {"target": "sglang", "version": "0.5.9", "kind": "wheel", "root": "/opt/x",
               "origin": "/opt/x/RECORD", "files": [file]}  # fmt: skip
    seen = {key: evidence[key] for key in ("at", "kind", "verdict", "passed", "host")}
    verification = {**seen, "event": evidence["id"], "machine_id": "m" * 32, "here": True}
    audited = {key: value for key, value in entry.items() if key != "evidence"}
    environment = {"prefix": "/opt/sglang", "names": [], "packages": [package], "findings": [],
                   "ledger": True, "sets": [{**audited, "verification": verification}]}  # fmt: skip
    gpu = {"name": "RTX", "index": 0, "uuid": f"GPU-{node}"}
    host = {"gpus": [gpu, gpu], "driver": "580.95", "topology": ["2-gpus", "p2p"]}
    return {
        "schema": 1,
        "kind": "sm120patch-facts",
        "node": node,
        "groups": [],
        "environment": "/opt/sglang",
        "collected_at": (now or datetime.now(timezone.utc)).isoformat(),
        "reachable": True,
        "reason": None,
        "tool": "0.1.0",
        "commands": {
            "status": envelope("status", prefix="/opt/sglang", versions={"sglang": "0.5.9"},
                               content="c" * 64, interrupted=None, ledger_lost=False,
                               sets=[entry, other]),
            "audit": envelope("audit", environments=[environment], findings=[]),
            "doctor": envelope("doctor", host=host, checks=[], flags=[]),
            "history": envelope("history", events=[]),
            "caches": envelope("caches", touched=[], traps=[], problems=[], processes=[]),
        },
        **changes,
    }  # fmt: skip


def unreachable(node: str, reason: str = "ssh: connection timed out") -> Facts:
    """What the playbook writes for a node that does not answer."""
    return {
        "schema": 1, "kind": "sm120patch-facts", "node": node, "groups": [], "environment": None,
        "collected_at": datetime.now(timezone.utc).isoformat(), "reachable": False,
        "reason": reason, "tool": None, "commands": {},
    }  # fmt: skip


def renamed(facts: Facts, node: str, **changes: Any) -> Facts:
    """The same facts of another node, with other values at the top."""
    return {**copy.deepcopy(facts), "node": node, **changes}


def write_facts(directory: Path, *every: Facts) -> Path:
    """Write one file a node; return the directory."""
    directory.mkdir(exist_ok=True)
    for facts in every:
        (directory / f"{facts['node']}.json").write_text(json.dumps(facts))
    return directory


def result(facts: Facts, command: str) -> dict[str, Any]:
    """Result of one command within facts, to be changed."""
    found: dict[str, Any] = facts["commands"][command]["result"]
    return found


def set_of(facts: Facts, name: str) -> dict[str, Any]:
    """One set of `status` within facts, to be changed."""
    (found,) = (s for s in result(facts, "status")["sets"] if s["id"] == name)
    assert isinstance(found, dict)
    return found


def audited_of(facts: Facts, name: str) -> dict[str, Any]:
    """The same set of `audit` within facts, to be changed."""
    (environment,) = result(facts, "audit")["environments"]
    (found,) = (s for s in environment["sets"] if s["id"] == name)
    assert isinstance(found, dict)
    return found


def change_set(facts: Facts, name: str, **values: Any) -> None:
    """Change a set as `status` and as `audit` tell of it; `evidence`: values of that of both.

    One that is not applied any more loses its evidence. Whether it counts follows.
    """
    changed = values.pop("evidence", {})
    entry, audited = set_of(facts, name), audited_of(facts, name)
    evidence, verification = entry["evidence"], audited["verification"]
    for one in (entry, audited):
        one.update(values)
    evidence.update(changed)
    verification.update({k: v for k, v in changed.items() if k != "id"})
    verification["event"] = evidence["id"]
    applied = entry["state"] == "applied"
    for one in (entry, audited):
        one["counts"] = applied and evidence["kind"] == "real"
    if not applied:
        entry["evidence"] = audited["verification"] = None


def add_set(facts: Facts, name: str) -> None:
    """Let both commands tell of another set that is as `one` is."""
    (environment,) = result(facts, "audit")["environments"]
    environment["sets"].append({**copy.deepcopy(audited_of(facts, "one")), "id": name})
    entry = {**copy.deepcopy(set_of(facts, "one")), "id": name}
    result(facts, "status")["sets"].append(entry)


def made_real(facts: Facts) -> Facts:
    """The same facts as if the evidence had come from real GPUs, and satisfied the audit."""
    changed = copy.deepcopy(facts)
    for entry in result(changed, "status")["sets"]:
        if entry["evidence"]:
            entry.update(counts=True, label="applied")
            entry["evidence"]["kind"] = "real"
    for environment in result(changed, "audit")["environments"]:
        for entry in environment["sets"]:
            if entry["verification"]:
                entry.update(counts=True, label="applied")
                entry["verification"]["kind"] = "real"
    for place in (result(changed, "audit"), *result(changed, "audit")["environments"]):
        place["findings"] = [f for f in place["findings"] if f["kind"] != "unverified"]
    for event in result(changed, "history")["events"]:
        if event["evidence"]:
            event["evidence"]["kind"] = event["evidence"]["data"]["kind"] = "real"
    return changed


# --- as the report reads them -------------------------------------------------------------------


def parsed(facts: Facts | bytes, name: str = "gpu-01", how: Reading = HOW) -> NodeFacts:
    """What the report makes of a file NAME.json."""
    data = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    return parse(data, f"{name}.json", name, how)


def node(name: str, change: Callable[[Facts], object] = lambda _f: None, **top: Any) -> NodeFacts:
    """What the report makes of those facts, changed."""
    facts = small(name, now=NOW, **top)
    change(facts)
    return parsed(facts, name)


def nodes(count: int, **top: Any) -> list[NodeFacts]:
    """Nodes that are alike."""
    return [node(f"gpu-{n:02}", **top) for n in range(count)]


def drifted(facts: Facts) -> None:
    """Let a file hold what nobody knows."""
    change_set(facts, "one", state="drifted")
    (environment,) = result(facts, "audit")["environments"]
    environment["packages"][0]["files"][0].update(state="drifted", sha256="d" * 64)


def event(level: float, *, spread: float = 0.004, starts: int = 3, **data: Any) -> dict[str, Any]:
    """An event whose evidence has three repeats a server start around `level`."""
    wobble = (-spread, 0.0, spread)
    gpu = {"power_w": {"mean": 300.0}, "sm_mhz": {"mean": 2400.0}, "power_limit_w": 600.0,
           "throttled": {}}  # fmt: skip
    blocks = [
        {"workloads": {"c64": [{"output_throughput": level * (1 + w + wobble[n % 3] / 3)}
                               for w in wobble]},
         "telemetry": {"gpus": [gpu, copy.deepcopy(gpu)]}}
        for n in range(starts)
    ]  # fmt: skip
    return {
        "id": 9, "kind": "applied", "at": "2026-11-20T12:00:00+00:00", "data": {"end": "b"},
        "evidence": {"id": 4, "kind": "real", "verdict": "improved", "profile": "p" * 64,
                     "at": "2026-11-20T12:00:00+00:00",
                     "data": {"client": "native", "workloads": [
                         {"name": "c64", "input_len": 256, "output_len": 128, "concurrency": 64,
                          "prompts": 128}],
                         "arms": {"patched": {"blocks": blocks,
                                              "server_info": {"tp_size": 2, "pid": 1}}},
                         "blocks_run": ["patched"] * starts,
                         "commands": {"patched": "serve"}, **data}},
    }  # fmt: skip
