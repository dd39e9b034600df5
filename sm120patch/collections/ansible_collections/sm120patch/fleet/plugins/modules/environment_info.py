#!/usr/bin/python
# Copyright: the sm120patch maintainers
# SPDX-License-Identifier: Apache-2.0
"""Gathers what is patched in an environment of a node, and what is known about the node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: environment_info
short_description: Tell what is patched in an environment of a node
version_added: 0.1.0
author: The sm120patch maintainers (!UNKNOWN)
description:
  - Runs the commands of C(sm120patch) that only look, and returns what they answer.
  - Findings, interrupted commands and sets that are not verified are answers, not failures.
  - RV(commands), with what M(sm120patch.fleet.audit_info) returns, are the facts that C(sm120patch
    fleet-report) reads.
extends_documentation_fragment:
  - sm120patch.fleet.cli
  - sm120patch.fleet.cli.environment
options:
  gather:
    description:
      - Commands to run besides C(status).
      - V(doctor) looks at the host, V(history) returns what was done and measured, V(caches) what
        is compiled.
    type: list
    elements: str
    choices: [doctor, history, caches]
    default: [doctor]
  history_limit:
    description:
      - Number of events of the history to return, newest first, each with all that was measured.
    type: int
    default: 20
  profile:
    description:
      - Verification profile on the node whose options V(doctor) looks at as well.
    type: path
  gpu:
    description:
      - Compute capability of the GPU, such as V(12.0). By default the driver is asked.
    type: str
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
seealso:
  - module: sm120patch.fleet.patch_set
  - module: sm120patch.fleet.audit_info
"""

EXAMPLES = r"""
- name: Look at the environment
  sm120patch.fleet.environment_info:
    environment: /opt/sglang
  register: sglang

- name: Stop where something is on disk that nobody verified
  ansible.builtin.assert:
    that: sglang.states.values() | intersect(unwanted) | length == 0
  vars:
    unwanted: [staged, edited, drifted, lost, interrupted, unknown]

- name: Everything that a report of the fleet needs
  sm120patch.fleet.environment_info:
    environment: /opt/sglang
    gather: [doctor, history, caches]
"""

RETURN = r"""
tool:
  description: Version of the tool on the node.
  returned: always
  type: str
  sample: 0.1.0
prefix:
  description: Prefix of the environment.
  returned: success
  type: str
  sample: /opt/sglang
versions:
  description: Package -> version on the node.
  returned: success
  type: dict
  sample: {"sglang": "0.5.9", "flashinfer-python": "0.6.3"}
digest:
  description:
    - Names the content on disk, hashed now, equal on all nodes with equal code. See
      O(sm120patch.fleet.patch_set#module:expected_digest).
  returned: success
  type: str
states:
  description:
    - Set -> its state on the node, for every set of the catalogue.
    - It is V(applied) only with evidence of a real server, else V(applied (simulated)) or
      V(applied (rehearsal)). The bare state is in RV(sets).
  returned: success
  type: dict
  sample: {"allreduce-fusion": "applied"}
sets:
  description: The sets as C(sm120patch status) describes them.
  returned: success
  type: list
  elements: dict
interrupted:
  description:
    - Command that was interrupted and waits for C(sm120patch recover); null when there is none.
  returned: success
  type: str
under_way:
  description: Command that holds the environment right now; null when there is none.
  returned: success
  type: str
commands:
  description:
    - Command -> the whole answer that it printed, whatever its exit code.
    - A command that could not be carried out has its reason in C(errors).
  returned: success
  type: dict
  contains:
    status:
      description: What C(sm120patch status) answers.
      type: dict
      returned: always
    doctor:
      description: What C(sm120patch doctor) answers.
      type: dict
      returned: when gathered
    history:
      description: What C(sm120patch history) answers.
      type: dict
      returned: when gathered
    caches:
      description: What C(sm120patch caches) answers.
      type: dict
      returned: when gathered
failure:
  description: Why the task failed, as a word.
  returned: failed
  type: str
rc:
  description: Exit code of the tool.
  returned: failed
  type: int
error:
  description: The error as the tool says it, with C(code), C(message), C(hint) and C(details).
  returned: failed
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sm120patch.fleet.plugins.module_utils.cli import (
    COMMON,
    ENVIRONMENT,
    Tool,
    absolute,
    options,
    succeed,
    understood,
)

GATHERED = ("doctor", "history", "caches")
ARGUMENTS = {
    **COMMON,
    **ENVIRONMENT,
    "gather": {"type": "list", "elements": "str", "choices": list(GATHERED), "default": ["doctor"]},
    "history_limit": {"type": "int", "default": 20},
    "profile": {"type": "path"},
    "gpu": {"type": "str"},
}


def main() -> None:
    """Read the parameters and run the task."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        mutually_exclusive=[("environment", "python")],
        required_one_of=[("environment", "python")],
        supports_check_mode=True,
    )
    with understood(module, {}):
        look(module)


def look(module: AnsibleModule) -> None:
    """Ask each command and end the task with the answers."""
    params, tool = module.params, Tool(module)
    version = tool.version()
    gpu = options(gpu=params["gpu"])
    answer = tool.ask("status", *gpu)
    if not answer.result:
        tool.fail(answer, tool=version)
    words = {
        "doctor": [*gpu, *options(profile=absolute(params["profile"]))],
        "history": options(limit=params["history_limit"]),
        "caches": [],
    }
    commands = {"status": answer.envelope}
    for command in GATHERED:
        if command in params["gather"]:
            commands[command] = tool.ask(command, *words[command]).envelope
    status = answer.result
    found = {
        "changed": False,
        "tool": version,
        "prefix": status["prefix"],
        "versions": status["versions"],
        "digest": status["content"],
        "states": {one["id"]: one["label"] for one in status["sets"]},
        "sets": status["sets"],
        "interrupted": status["interrupted"],
        "under_way": status["under_way"],
        "commands": commands,
    }
    succeed(module, found)


if __name__ == "__main__":
    main()
