#!/usr/bin/python
# Copyright: the sm120patch maintainers
# SPDX-License-Identifier: Apache-2.0
"""Audits the environments of a node: every installed file against upstream's content."""

from __future__ import annotations

DOCUMENTATION = r"""
module: audit_info
short_description: Compare every installed file of a node with upstream's
version_added: 0.1.0
author: The sm120patch maintainers (!UNKNOWN)
description:
  - Runs C(sm120patch audit), which finds the Python environments of a node and compares each file
    of SGLang and FlashInfer with upstream's content and with what the ledger says.
  - It changes nothing; no code of the environments is run.
  - Findings do not fail the task unless O(fail_on) says so.
extends_documentation_fragment:
  - sm120patch.fleet.cli
  - sm120patch.fleet.cli.environment
options:
  environment:
    description:
      - Audit this environment only. Without it and without O(python) and O(root) the whole node is
        searched.
  root:
    description:
      - Audit an unpacked image or a container's file system that lies here; nothing outside it is
        read.
    type: path
  fail_on:
    description:
      - Kinds of findings that fail the task; V(any) stands for all.
      - Where kinds are named, what is unknown fails the task as well.
    type: list
    elements: str
    choices:
      - any
      - foreign
      - by-hand
      - missing
      - added
      - unreadable
      - record
      - lost
      - drifted
      - unverified
      - interrupted
      - changed-payload
      - copies
      - shared
      - carrier
      - stale-bytecode
      - stale-build
      - stale-server
      - unknown
    default: []
  max_directories:
    description:
      - Directories that the search looks into at most. By default as many as the tool does.
    type: int
  network:
    description:
      - Search network mounts too.
    type: bool
    default: false
  quick:
    description:
      - Hash only files whose size, times or inode changed since they were hashed last.
    type: bool
    default: false
attributes:
  check_mode:
    description: Can run in check mode; it changes nothing in any mode.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
  async:
    description: Can be run with C(async).
    support: full
notes:
  - Run it as root (C(become)) to see the environments and processes of every user.
seealso:
  - module: sm120patch.fleet.environment_info
  - module: sm120patch.fleet.patch_set
"""

EXAMPLES = r"""
- name: Audit the whole node
  sm120patch.fleet.audit_info:
  become: true
  register: audit

- name: Fail where somebody edited files, or where a patch went lost
  sm120patch.fleet.audit_info:
    environment: /opt/sglang
    fail_on: [foreign, by-hand, drifted, lost]
"""

RETURN = r"""
findings:
  description: What was found; empty on a node where every file is explained.
  returned: always, unless the audit itself failed
  type: list
  elements: dict
counts:
  description: Kind of finding -> how many there are.
  returned: always, unless the audit itself failed
  type: dict
  sample: {"foreign": 2}
clean:
  description: True when there is no finding at all.
  returned: always, unless the audit itself failed
  type: bool
audit:
  description: The whole answer of C(sm120patch audit), as it printed it.
  returned: always, unless the audit itself failed
  type: dict
  contains:
    schema:
      description: Form of the answer.
      type: int
      returned: always
    command:
      description: V(audit).
      type: str
      returned: always
    ok:
      description: True when the exit code is 0.
      type: bool
      returned: always
    exit_code:
      description: 1 when there are findings.
      type: int
      returned: always
    result:
      description: Environments with their packages and sets; what was skipped; the findings.
      type: dict
      returned: always
    errors:
      description: Empty.
      type: list
      elements: dict
      returned: always
failure:
  description: Why the task failed, as a word.
  returned: failed
  type: str
rc:
  description: Exit code of the tool.
  returned: failed
  type: int
error:
  description: The error as the tool says it; null for findings.
  returned: failed
  type: dict
"""

from collections import Counter

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sm120patch.fleet.plugins.module_utils.cli import (
    COMMON,
    ENVIRONMENT,
    FINDINGS,
    Tool,
    absolute,
    options,
    succeed,
    understood,
)

KINDS = (
    "foreign", "by-hand", "missing", "added", "unreadable", "record", "lost", "drifted",
    "unverified", "interrupted", "changed-payload", "copies", "shared", "carrier",
    "stale-bytecode", "stale-build", "stale-server", "unknown",
)  # fmt: skip
"""Kinds of findings that the tool knows."""
ANY = "any"
ARGUMENTS = {
    **COMMON,
    **ENVIRONMENT,
    "root": {"type": "path"},
    "fail_on": {"type": "list", "elements": "str", "choices": [ANY, *KINDS], "default": []},
    "max_directories": {"type": "int"},
    "network": {"type": "bool", "default": False},
    "quick": {"type": "bool", "default": False},
}


def main() -> None:
    """Read the parameters and run the task."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        mutually_exclusive=[("environment", "python", "root")],
        supports_check_mode=True,
    )
    with understood(module, {}):
        look(module)


def look(module: AnsibleModule) -> None:
    """Run the audit and end the task with what it found."""
    params, tool = module.params, Tool(module)
    fatal = params["fail_on"]
    answer = tool.ask(
        "audit",
        *options(
            root=absolute(params["root"]),
            fail_on=[] if ANY in fatal else fatal,
            max_directories=params["max_directories"],
            network=params["network"],
            quick=params["quick"],
        ),
    )
    if not answer.result:
        tool.fail(answer)
    findings = answer.result["findings"]
    counts = dict(Counter(finding["kind"] for finding in findings))
    found = {
        "changed": False,
        "findings": findings,
        "counts": counts,
        "clean": not findings,
        "audit": answer.envelope,
    }
    if fatal and answer.code == FINDINGS:
        shown = ", ".join(f"{kind}: {count}" for kind, count in sorted(counts.items()))
        tool.fail(answer, **{**found, "msg": f"the audit has findings: {shown}"})
    succeed(module, found)


if __name__ == "__main__":
    main()
