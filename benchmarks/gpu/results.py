"""Keeps the numbers of a run, and writes docs/gpu-results.md from what is kept.

    python benchmarks/gpu/results.py keep RESULTS.tar.xz NAME TITLE
                                                                 -> benchmarks/gpu/results/NAME.json
    python benchmarks/gpu/results.py write                       -> docs/gpu-results.md

What is kept is as it was measured: every repeat of every server start, no selection, no rounding
beyond six digits. The document is a view of it; a test compares the two.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results"
DOCUMENT = HERE.parents[1] / "docs" / "gpu-results.md"
_METRICS = (
    "output_throughput", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
    "p99_tpot_ms", "mean_itl_ms", "completed", "failed", "duration",
)  # fmt: skip
_TOLD = (
    "outcome", "verdict", "refused", "engaged", "equal", "exactly_twice", "seconds",
    "build_seconds", "answered", "served", "server_gone", "differs_from_control",
)  # fmt: skip
_MEASURED = ("fusion-verify", "null", "null-one", "trap", "awake", "drowsy")
"""Steps whose answer holds a verification."""
_ALWAYS = ("differs_from_control", "findings", "engaged", "compiled")
"""Kept of a step although there is nothing in them: that is what they say."""
_NO_NEWS = "longer than the model's context length"
"""The long question of the examination does not fit into the small model's context."""
_SAID = 600  # characters kept of a message


# --- keeping -----------------------------------------------------------------------------------


def keep(archive: Path) -> dict[str, Any]:
    """Everything that was measured or answered, small enough to be committed."""
    with tarfile.open(archive) as tar:
        files = {m.name: tar.extractfile(m) for m in tar if m.isfile()}
        texts = {name: stream.read() for name, stream in files.items() if stream is not None}
    run = json.loads(texts["results/run.json"])
    answers = {name: json.loads(texts[f"results/{name}.json"]) for name in _measured(texts)}
    found: dict[str, Any] = {
        "note": "Hopper GPUs, copies of the packages: a rehearsal. Nothing here is about SM120.",
        "dry": run["dry"],
        "facts": {**run["facts"], "host": _host(texts)},
        "steps": [_step(step) for step in run["steps"]],
        "verifications": {name: found for name, answer in answers.items()
                          if (found := _verification(answer))},
        "gpus": _telemetry(texts.get("results/gpu.csv", b"").decode()),
    }  # fmt: skip
    scrubbed: dict[str, Any] = json.loads(_scrubbed(json.dumps(found)))
    return scrubbed


def _measured(texts: Mapping[str, bytes]) -> list[str]:
    """Steps whose answers are there, run by run: those of a later run have its number."""
    wanted = re.compile(rf"results/(({'|'.join(_MEASURED)})(?:-(\d+))?)\.json")
    found = [match for name in texts if (match := wanted.fullmatch(name))]
    found.sort(key=lambda match: (int(match[3] or 1), _MEASURED.index(match[2])))
    return [match[1] for match in found]


def _scrubbed(text: str) -> str:
    """Leave out what names a board or a place on the machine."""
    text = re.sub(r"GPU-[0-9a-f]{8}-[0-9a-f-]{27}", "GPU-...", text)
    text = re.sub(r"/opt/[\w./-]+/(?=python3[\s\"])", "", text)
    text = re.sub(r"/opt/[\w.-]+/[\w./-]*(?=/site-packages)", "$PYTHON", text)
    return re.sub(r"/tmp/[\w.-]+(?:/run)?", "$RUN", text)


def _host(texts: Mapping[str, bytes]) -> dict[str, Any]:
    """The host as sm120patch saw it, from the newest measurement; identifiers left out."""
    for name in ("results/fusion-report.json", "results/awake-report.json"):
        report = json.loads(texts.get(name, b"{}"))
        found = (((report.get("result") or {}).get("evidence") or {}).get("data") or {}).get("host")
        if found:
            kept = {k: v for k, v in found.items() if k not in ("machine_id", "fingerprint")}
            kept["gpus"] = [{k: v for k, v in gpu.items() if k not in ("uuid", "pci_bus_id")}
                            for gpu in found.get("gpus", [])]  # fmt: skip
            return kept
    return {}


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in step.items() if k in _ALWAYS or v not in ("", [], {}, None, False)}
    for name in ("others", "event", "launch", "versions"):
        kept.pop(name, None)
    for name in ("output", "errors"):
        if name in kept and step.get("rc") == 0:
            kept.pop(name)
    return _shortened(kept)


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value[-_SAID:]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _shortened(v) for k, v in value.items()}
    return [_shortened(v) for v in value] if isinstance(value, list) else value


def _verification(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    found = ((answer.get("result") or {}).get("verification")) or {}
    if not found:
        return None
    wanted = ("verdict", "kind", "goal", "margin", "reasons", "advice", "order", "blocks_run",
              "intervals", "workloads", "commands", "duration", "unfinished", "server_differences",
              "versions", "seed", "noise", "schedule", "collapse", "ended")  # fmt: skip
    kept = {name: found.get(name) for name in wanted}
    kept["outcome"] = answer["result"].get("outcome")
    kept["correctness"] = {
        key: (found.get("correctness") or {}).get(key)
        for key in ("comparable", "faults", "agreement", "not_examined")
    }
    kept["answers"] = {
        arm: [a["text"][:80] for a in listed[:4]]
        for arm, listed in ((found.get("correctness") or {}).get("answers") or {}).items()
    }
    kept["starts"] = list(_starts(found))
    kept["telemetry"] = {
        arm: [{k: v for k, v in (b.get("telemetry") or {}).items() if k != "series"}
              for b in side["blocks"]]
        for arm, side in found.get("arms", {}).items()
    }  # fmt: skip
    shortened: dict[str, Any] = _shortened(kept)
    return shortened


def _starts(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Server starts in the order in which they ran, with every repeat."""
    seen = {arm: iter(side["blocks"]) for arm, side in found["arms"].items()}
    for arm in found.get("blocks_run", []):
        block = next(seen[arm], None)
        if block is not None:
            repeats = {
                name: [{m: r[m] for m in _METRICS if m in r} for r in listed]
                for name, listed in block["workloads"].items()
            }
            yield {"arm": arm, "ready_seconds": block["ready_seconds"], "repeats": repeats}


def _telemetry(text: str) -> dict[str, Any]:
    """Ranges of what nvidia-smi said, GPU by GPU: idle and at work."""
    found: dict[str, Any] = {}
    fields = ("sm_mhz", "mem_mhz", "watts", "celsius", "percent", "mib")
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        try:
            index, values = row[1], [float(v) for v in row[2:8]]
        except (IndexError, ValueError):
            continue
        found.setdefault(index, []).append(dict(zip(fields, values, strict=True)))
    return {
        index: {
            "seconds": len(rows),
            **{f: [min(r[f] for r in rows), max(r[f] for r in rows)] for f in fields},
            "busy_median": {f: _median([r[f] for r in rows if r["percent"] > 50])
                            for f in ("sm_mhz", "watts")},
        }
        for index, rows in found.items()
    }  # fmt: skip


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


# --- the document ------------------------------------------------------------------------------

_HEAD = """\
# Results on Hopper GPUs (not SM120)

<!-- written by `python benchmarks/gpu/results.py write` from benchmarks/gpu/results/ -->

Real SGLang 0.5.15.post1 and FlashInfer 0.6.12 on NVIDIA H200 GPUs. **Nothing here is about SM120**:
no such board was at hand. The packages are copies in which Hopper is shut out as SM120 is upstream
([benchmarks/gpu](../benchmarks/gpu/README.md)), so every evidence is of the kind `rehearsal` and
counts nowhere. The two GPUs are linked by NVLink, which SM120 boards do not have: even the
direction of an effect says nothing about them. What is shown is that the machinery works with a
real server, real kernels and real noise.
"""


def write(runs: Mapping[str, Mapping[str, Any]], summary: str = "") -> str:
    """The whole document; `runs` are the kept files by title, `summary` is in people's words."""
    lines = [_HEAD]
    lines += [summary.strip(), ""] if summary else []
    for name, run in runs.items():
        lines += [f"## {name}", "", *_machine(run)]
        for step, found in run["verifications"].items():
            lines += _measurement(step, found)
        lines += [*_reduction(run), *_kernels(run), *_clients(run), *_story(run)]
    return "\n".join(lines).rstrip() + "\n"


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    return [_row(*head), _row(*("---" for _ in head)), *(_row(*row) for row in rows), ""]


def _machine(run: Mapping[str, Any]) -> list[str]:
    facts = run["facts"]
    torch = facts.get("torch") or {}
    rows: list[Sequence[object]] = [("kernel", str(facts.get("kernel", "")).split(" (")[0])]
    host = facts.get("host") or {}
    if host:
        topology = ", ".join(host.get("topology", []))
        rows.append(("as sm120patch sees it", f"{topology}; named by {host['machine_id_source']}"))
    if torch:
        rows += [
            ("GPUs", ", ".join(torch["devices"])),
            ("compute capability", " ".join(".".join(map(str, c)) for c in torch["capability"])),
            ("torch", f"{torch['torch']}, CUDA {torch['cuda']}, NCCL {torch['nccl']}"),
            ("NVLink multicast", "off: torch says " + ", ".join(map(str, torch["multicast"]))),
        ]
    head, *values = str(facts.get("gpus", "")).strip().splitlines() or [""]
    for field in ("driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem"):
        names = [n.strip().split(" [")[0] for n in head.split(",")]
        column = names.index(field) if field in names else None
        if column is not None and values:
            rows.append((field, values[0].split(",")[column].strip()))
    for index, seen in sorted(run["gpus"].items()):
        busy = seen["busy_median"]
        clocks = f"SM {seen['sm_mhz'][0]:.0f} to {seen['sm_mhz'][1]:.0f} MHz"
        power = f"{seen['watts'][0]:.0f} to {seen['watts'][1]:.0f} W"
        memory, heat = f"memory {seen['mem_mhz'][1]:.0f} MHz", f"up to {seen['celsius'][1]:.0f} °C"
        work = f"at work (median) {busy['sm_mhz'] or 0:.0f} MHz, {busy['watts'] or 0:.0f} W"
        shown = f"{clocks}, {memory}, {power}, {heat}; {work}"
        rows.append((f"GPU {index} in {seen['seconds']} s", shown))
    tool = str(facts.get("tool", "")).strip()
    rows += [("sm120patch", tool)] if tool else []
    return _table(("machine", ""), rows)


def _story(run: Mapping[str, Any]) -> list[str]:
    """Every step in the order in which it ended."""
    steps = [s for s in run["steps"] if not s["step"].startswith("facts")]
    several = len({s.get("run", 1) for s in steps}) > 1
    rows = [
        (f"{s['run']}: {s['at']:g}" if several else s["at"], s["step"], _said(s)) for s in steps
    ]
    head = ["### Second by second (rehearsal, not SM120)", ""]
    return [*head, *_table(("s", "step", "came to"), rows)]


def _said(step: Mapping[str, Any]) -> str:
    parts: list[str] = []
    if "skipped" in step:
        parts.append(str(step["skipped"]))
    if "failed" in step:
        parts.append("FAILED: " + str(step["failed"]).strip().splitlines()[-1][:160])
    if step.get("late"):
        parts.append("cut off by its limit")
    if step.get("rc"):
        parts.append(f"exit status {step['rc']}")
    for name in _TOLD:
        if name in step and step[name] != []:
            value = step[name]
            shown = f"{value:.2f}" if isinstance(value, float) else json.dumps(value)
            parts.append(
                f"{name} {shown}" if not isinstance(value, str) else f"{name}: {value}"[:160]
            )
    if "compiled" in step or "build_seconds" in step:
        parts.append(f"compiled: {', '.join(step.get('compiled', [])) or 'nothing'}")
    if step.get("sets"):
        parts.append(", ".join(f"`{n}` {label}" for n, label in step["sets"].items()))
    if step.get("differs_from_control") == []:
        parts.append("every byte of both packages as in the control")
    if "findings" in step:
        first = f": {step['findings'][0]['detail']}" if step["findings"] else ""
        parts.append(f"{len(step['findings']) or 'no'} findings{first}"[:160])
    news = [line for line in step.get("lines", []) if _NO_NEWS not in line]
    parts += [f"“{line.strip()[-170:]}”" for line in dict.fromkeys(news[:3])]
    parts += [f"“{m.splitlines()[0][:220]}”" for m in step.get("messages", [])[:1] if m]
    return "; ".join(parts) or "done"


def _measurement(step: str, found: Mapping[str, Any]) -> list[str]:
    verdict, order = found["verdict"], " ".join(found["blocks_run"])
    asked = f"Goal `{found['goal']}`, margin {found['margin']}, {found['duration']:.0f} s"
    ended = f"order {order}; ended as `{found['outcome']}`."
    lines = [f"### {step}: {verdict} (rehearsal, not SM120)", "", f"{asked}, {ended}", ""]
    lines += [f"- {reason}" for reason in found["reasons"] or ()]
    lines += [f"- advice: {found['advice']}"] if found.get("advice") else []
    faults = (found["correctness"] or {}).get("faults") or []
    said = "; ".join(faults) or "nothing against the patched server"
    lines += [f"- answers: {said}{_agreed(found['correctness'] or {})}", ""]
    rows = []
    for number, start in enumerate(found["starts"], 1):
        for workload, repeats in start["repeats"].items():
            for repeat, r in enumerate(repeats, 1):
                rows.append((
                    f"{number} {start['arm']}", f"{start['ready_seconds']:.0f}", workload, repeat,
                    f"{r['output_throughput']:.1f}", f"{r.get('mean_ttft_ms', 0):.1f}",
                    f"{r.get('mean_tpot_ms', 0):.3f}", f"{r.get('p99_tpot_ms', 0):.3f}",
                    f"{r.get('failed', 0):g}",
                ))  # fmt: skip
    head = ("start", "ready s", "workload", "repeat", "tok/s", "TTFT ms", "TPOT ms", "p99 TPOT",
            "failed")  # fmt: skip
    return [*lines, *(_table(head, rows) if rows else []), *_power(found)]


def _power(found: Mapping[str, Any]) -> list[str]:
    """What the GPUs did from ready to stop, start by start, as sm120patch read it."""
    seen = {arm: iter(listed) for arm, listed in (found.get("telemetry") or {}).items()}
    rows = []
    for number, start in enumerate(found["starts"], 1):
        for gpu in (next(seen.get(start["arm"], iter(())), None) or {}).get("gpus") or ():
            watts, clock = gpu["power_w"], gpu["sm_mhz"]
            rows.append((
                f"{number} {start['arm']}", gpu["index"],
                f"{watts['mean']:.0f} ({watts['min']:.0f} to {watts['max']:.0f})",
                f"{clock['min']:.0f} to {clock['max']:.0f}", f"{gpu['mem_mhz']['mean']:.0f}",
                f"{gpu['util']['mean']:.0f}", f"{gpu['temp_c']['max']:.0f}",
                ", ".join(gpu.get("throttled") or ()) or "no",
            ))  # fmt: skip
    head = ("start", "GPU", "W", "SM MHz", "memory MHz", "busy %", "°C", "throttled")
    return _table(head, rows) if rows else []


def _agreed(correctness: Mapping[str, Any]) -> str:
    """How many tokens were alike, and how far apart their log-probabilities were."""
    probes = (correctness.get("agreement") or {}).values()
    known = [p for p in probes if p.get("settled") is not None]  # kept since the rule knows it
    if not known:
        return ""
    tokens, agreed = (sum(p[name] for p in known) for name in ("tokens", "agreed"))
    far = max((p["worst_logprob_difference"] or 0.0 for p in known), default=0.0)
    return (f"; {agreed} of {tokens} tokens of {len(known)} questions are the baseline's,"
            f" log-probabilities at most {far:.3f} apart")  # fmt: skip


def _kernels(run: Mapping[str, Any]) -> list[str]:
    steps = [s for s in run["steps"] if s["step"].startswith("kernel-") and "sha256" in s]
    rows = [
        (s["step"], f"{s['seconds']:.2f}", ", ".join(s.get("compiled", [])) or "nothing",
         s["sha256"][:12], str(s.get("output", ""))[:12], f"{s.get('scale', 0):.4f}",
         f"{s.get('relative_error', 0):.2g}",
         f"{_median(s['milliseconds']) or 0:.4f}" if s.get("milliseconds") else "")
        for s in steps
    ]  # fmt: skip
    if not rows:
        return []
    head = ("step", "build s", "compiled", "library", "output", "output / silu(x)·y", "rel. error",
            "median ms")  # fmt: skip
    return ["### FlashInfer alone: builds follow the header (gpu, not SM120)", "",
            "The patched header doubles the output of `silu_and_mul`, exactly.", "",
            *_table(head, rows)]  # fmt: skip


def _clients(run: Mapping[str, Any]) -> list[str]:
    rows = []
    for step in run["steps"]:
        f = step.get("figures")
        if f:
            rows.append((step["step"], f["completed"], f"{f['output_throughput']:.1f}",
                         f"{f['mean_ttft_ms']:.1f}", f"{f['mean_tpot_ms']:.3f}",
                         f"{f['p99_tpot_ms']:.3f}"))  # fmt: skip
    head = ("run", "completed", "tok/s", "TTFT ms", "TPOT ms", "p99 TPOT")
    if not rows:
        return []
    return ["### SGLang's own client (gpu, not SM120)", "", *_table(head, rows)]


def _reduction(run: Mapping[str, Any]) -> list[str]:
    rows = []
    for step in run["steps"]:
        for tokens, errors in (step.get("errors_by_tokens") or {}).items():
            rows.append((
                tokens, *(f"{errors[n]:.5f}" for n in
                          ("fused_norm", "plain_norm", "fused_residual", "plain_residual")),
                f"{100 * errors['equal_residual']:g} %",
            ))  # fmt: skip
    if not rows:
        return []
    head = ("tokens", "fused norm", "plain norm", "fused residual", "plain residual", "equal sums")
    said = (
        "Relative error against sums in double precision, hidden size 2048, BF16, two GPUs: the"
        " fused kernel, and NCCL followed by the same steps one by one."
    )
    title = "### Is the fused all-reduce right? (gpu, not SM120)"
    return [title, "", said, "", *_table(head, rows)]


def summary() -> str:
    """What people say about the runs."""
    path = KEPT / "summary.md"
    return path.read_text() if path.exists() else ""


def kept() -> dict[str, dict[str, Any]]:
    """The kept files by their titles, in order of their names."""
    return {
        found.get("title", path.stem): found
        for path in sorted(KEPT.glob("*.json"))
        for found in [json.loads(path.read_text())]
    }


def main(arguments: list[str]) -> int:
    """Run one of the two commands of the docstring."""
    if arguments[:1] == ["keep"] and len(arguments) == 4:
        KEPT.mkdir(exist_ok=True)
        found = {"title": arguments[3], **keep(Path(arguments[1]))}
        target = KEPT / f"{arguments[2]}.json"
        target.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(f"{target}: {target.stat().st_size // 1024} KiB")
        return 0
    if arguments == ["write"]:
        DOCUMENT.write_text(write(kept(), summary()))
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
