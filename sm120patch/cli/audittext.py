"""Text of an audit for people. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from sm120patch.audit.findings import EnvironmentReport, HostReport, PackageReport, SetReport
from sm120patch.cli import following
from sm120patch.plaintext import counted, table


def report_text(report: HostReport, given: following.Given = ()) -> str:
    """Return one section for each environment that holds a target, then what else there is.

    `given` goes into the commands to run next.
    """
    shown = [e for e in report.environments if e.packages or e.findings]
    parts = [
        part for environment in shown for part in (_environment(environment, report, given), "")
    ]
    others = len(report.environments) - len(shown)
    if report.findings:
        rows = [(f.kind.value, f.path, f.detail) for f in report.findings]
        parts += [f"{report.root}:", _indented(table(rows)), ""]
    parts += [f"not looked into: {s.path}: {s.reason}" for s in report.skipped]
    if report.not_looked_at:
        parts.append(f"not looked at with --root: {' and '.join(report.not_looked_at)}")
    if others:
        parts.append(f"environments without SGLang and FlashInfer: {others}")
    parts.append(_sum(report))
    return "\n".join(parts)


def _environment(environment: EnvironmentReport, report: HostReport, given: following.Given) -> str:
    python = f", Python {environment.python}" if environment.python else ""
    names = f"; also {', '.join(environment.names)}" if environment.names else ""
    lines = [f"{environment.prefix} ({environment.kind}{python}{names})"]
    lines += [f"  {line}" for p in environment.packages for line in _package(p)]
    if not environment.packages:
        lines.append("  no target installed")
    rows = [(s.id, s.label, s.reason, _verified(s)) for s in environment.sets]
    lines += [_indented(table(rows))] if rows else []
    found = [(f.kind.value, f.target, f.path, f.detail) for f in environment.findings]
    lines += [_indented(table(found))] if found else []
    # Commands are for environments of this host; an image is patched where it runs, and a
    # checkout that nobody installed has no interpreter to ask.
    runs = report.root == "/" and environment.kind != "checkout"
    told = environment.findings if runs else ()
    hints = _joined(f.hint for f in told if f.hint.startswith("sm120patch"))
    where = f"--env {shlex.quote(environment.prefix)}"
    full = [following.command(f"{hint} {where}", given) for hint in hints]
    lines += [f"  next: {line}" for line in full]
    return "\n".join(lines)


def _joined(hints: Iterable[str]) -> list[str]:
    """Each command once, and one `apply` for all sets: those that are lost bar one another."""
    apply = "sm120patch apply "
    found = list(dict.fromkeys(hints))
    joined = [hint for hint in found if hint.startswith(apply) and " --" not in hint]
    names = dict.fromkeys(" ".join(hint.removeprefix(apply) for hint in joined).split())
    rest = [hint for hint in found if hint not in joined]
    return [*([apply + " ".join(names)] if names else []), *rest]


def _package(package: PackageReport) -> Iterator[str]:
    head = f"{package.target} {package.version}"
    if package.compared:
        pristine = f"{package.pristine} of {package.compared} files are upstream's"
        yield f"{head}: {pristine} ({package.origin})"
    else:
        yield f"{head}: not compared"
    for other in package.same_as:
        yield f"{head}: the same files as in {other}"


def _verified(entry: SetReport) -> str:
    """Newest verdict on what is on disk, and where it was reached."""
    found = entry.verification
    if found is None:
        return ""
    kind = "" if found.kind == "real" else f" ({found.kind})"
    where = "this host" if found.here else f"another host, {found.host[:12]}"
    return f"{found.verdict}{kind} on {where}, {found.at}"


def _sum(report: HostReport) -> str:
    count = sum(1 for _ in report.all_findings)
    environments = len(report.environments)
    found = counted(count, "finding") if count else "no findings"
    return f"{counted(environments, 'environment')}: {found}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
