"""An audit as a CycloneDX 1.6 document: packages, with what was patched in their pedigree. Pure.

Needs cyclonedx-python-lib (`sm120patch[cyclonedx]`).
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from sm120patch import __version__
from sm120patch.audit.findings import (
    EnvironmentReport,
    FileReport,
    FileState,
    HostReport,
    PackageReport,
    SetReport,
)
from sm120patch.exports.common import Diffs, claimed, cleaned, plain, references
from sm120patch.model import Goal, PatchSet, digest_of
from sm120patch.plan import sets_of

if TYPE_CHECKING:
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, Patch, PatchClassification
    from cyclonedx.model.issue import IssueType

_EDITED = (FileState.OURS, FileState.BY_HAND, FileState.FOREIGN, FileState.DRIFTED, FileState.ADDED)
_MENDS = (Goal.CRASH_FIX, Goal.CORRECTNESS)


def document(
    report: HostReport,
    catalogue: Mapping[str, PatchSet],
    diffs: Diffs,
    now: datetime.datetime,
) -> str:
    """Return the document as JSON. Raises ValueError when it does not meet the strict schema.

    One patch stands for all files that were shaped by the same sets; its diff leads from upstream's
    content to what is on disk. `diffs` may lack some: then the patch has no diff, or only part.
    """
    from cyclonedx.output.json import JsonV1Dot6
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    texts = {(plain(root), plain(path)): plain(diff) for (root, path), diff in diffs.items()}
    bom = _bom(cleaned(report), catalogue, texts, now)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault is not None:
        raise ValueError(f"the document does not meet CycloneDX 1.6: {fault!r}")
    return text + "\n"


def _bom(
    report: HostReport, catalogue: Mapping[str, PatchSet], diffs: Diffs, now: datetime.datetime
) -> Bom:
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository

    tool = Component(
        type=ComponentType.APPLICATION, name="sm120patch", version=__version__, bom_ref="sm120patch"
    )
    # Equal audits at one instant are one document; nothing else gets its number.
    facts = [now.isoformat(), report.root, [e.prefix for e in report.environments]]
    return Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, digest_of(facts)),
        metadata=BomMetaData(timestamp=now, tools=ToolRepository(components=[tool])),
        components=[_environment(e, catalogue, diffs) for e in report.environments],
    )


def _environment(
    environment: EnvironmentReport, catalogue: Mapping[str, PatchSet], diffs: Diffs
) -> Component:
    from cyclonedx.model.component import Component, ComponentType

    properties = [_property("kind", environment.kind)]
    properties += [_property(f"set:{s.id}", claimed(s)) for s in environment.sets]
    properties += [
        _property(f"finding:{f.kind.value}", f"{f.target} {f.path}") for f in environment.findings
    ]
    return Component(
        type=ComponentType.PLATFORM,
        name=environment.prefix,
        version=environment.python or None,
        bom_ref=f"environment:{environment.prefix}",
        properties=properties,
        components=[
            _package(environment, package, catalogue, diffs) for package in environment.packages
        ],
    )


def _package(
    environment: EnvironmentReport,
    package: PackageReport,
    catalogue: Mapping[str, PatchSet],
    diffs: Diffs,
) -> Component:
    from cyclonedx.model.component import Component, ComponentType, Pedigree
    from packageurl import PackageURL

    sets = {s.id: s for s in environment.sets}
    patches = list(_patches(package, sets, catalogue, diffs))
    edited = [f for f in package.files if f.state in _EDITED]
    return Component(
        type=ComponentType.LIBRARY,
        name=package.target,
        version=package.version,
        purl=PackageURL("pypi", name=package.target, version=package.version),
        bom_ref=f"package:{environment.prefix}:{package.target}",
        pedigree=Pedigree(patches=patches) if patches else None,
        properties=[
            _property("kind", package.kind),
            _property("files:compared", str(package.compared)),
            *(_property(f"file:{f.path}", f.sha256 or "absent") for f in edited),
        ],
    )


def _patches(
    package: PackageReport,
    sets: Mapping[str, SetReport],
    catalogue: Mapping[str, PatchSet],
    diffs: Diffs,
) -> Iterator[Patch]:
    from cyclonedx.model import AttachedText
    from cyclonedx.model.component import Diff, Patch

    edited = sorted((f for f in package.files if f.state in _EDITED), key=_group)
    for (shaped_by, _state), files in groupby(edited, key=_group):
        texts = [diffs[key] for f in files if (key := (package.root, f.path)) in diffs]
        diff = None
        if texts:
            diff = Diff(text=AttachedText(content="".join(texts), content_type="text/x-diff"))
        issues = [_issue(name, sets.get(name), catalogue.get(name)) for name in shaped_by]
        yield Patch(type=_classification(shaped_by, catalogue), diff=diff, resolves=issues)


def _group(file: FileReport) -> tuple[tuple[str, ...], str]:
    return sets_of(file.changes), file.state.value


def _classification(
    sets: tuple[str, ...], catalogue: Mapping[str, PatchSet]
) -> PatchClassification:
    from cyclonedx.model.component import PatchClassification

    kinds = {catalogue[name].type for name in sets if name in catalogue}
    if len(kinds) == 1 and all(name in catalogue for name in sets):
        return PatchClassification(kinds.pop())
    return PatchClassification.UNOFFICIAL


def _issue(name: str, on_disk: SetReport | None, known: PatchSet | None) -> IssueType:
    from cyclonedx.model import XsUri
    from cyclonedx.model.issue import IssueClassification, IssueType, IssueTypeSource

    mends = known is not None and known.verification.goal in _MENDS
    state = claimed(on_disk) if on_disk is not None else "unknown"
    return IssueType(
        type=IssueClassification.DEFECT if mends else IssueClassification.ENHANCEMENT,
        id=name,
        name=known.title if known is not None else name,
        description=f"patch set {name}, {state}",
        source=IssueTypeSource(name="sm120patch catalogue"),
        references=[XsUri(uri) for uri in references(known.upstream_reason)] if known else [],
    )


def _property(name: str, value: str) -> Property:
    from cyclonedx.model import Property

    return Property(name=f"sm120patch:{name}", value=value)
