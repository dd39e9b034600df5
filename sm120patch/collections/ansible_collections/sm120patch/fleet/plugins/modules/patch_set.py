#!/usr/bin/python
# Copyright: the sm120patch maintainers
# SPDX-License-Identifier: Apache-2.0
"""Puts patch sets onto a node, verifies them there, or takes them off."""

from __future__ import annotations

DOCUMENTATION = r"""
module: patch_set
short_description: Patch SGLang and FlashInfer on a node, verified there
version_added: 0.1.0
author: The sm120patch maintainers (!UNKNOWN)
description:
  - Puts patch sets onto a node with C(sm120patch apply), measures them there, or takes them off.
  - A set counts as applied only after a verification of exactly this content on this host has
    passed. A set that does not pass is taken off again by the tool, and the task fails with the
    evidence.
  - One request is all or nothing over all its sets.
extends_documentation_fragment:
  - sm120patch.fleet.cli
  - sm120patch.fleet.cli.environment
options:
  sets:
    description:
      - Names of the patch sets, as C(sm120patch list) shows them; what they depend on comes along.
    type: list
    elements: str
    aliases: [name]
  all:
    description:
      - Take off every set, instead of O(sets). Only with O(state=absent).
    type: bool
    default: false
  state:
    description:
      - V(present) puts the sets on disk and, unless O(verify=false), measures them and keeps them
        only if they pass. Where they are on disk and verified nothing is done.
      - V(verified) changes no file unless a set fails; sets that are on disk already get the
        verification that they lack. Sets that are not on disk are an error.
      - V(absent) gives every file upstream's content back; sets of other names stay.
    type: str
    choices: [present, verified, absent]
    default: present
  verify:
    description:
      - With V(false) the sets are only staged, which does not count as applied.
    type: bool
    default: true
  profile:
    description:
      - Verification profile on the node, which says how the server is started. Needed where
        something is to be measured.
    type: path
  goal:
    description:
      - Demand more or less than the manifests do.
    type: str
    choices: [speed, no-regression]
  max_time:
    description:
      - Bound the verification, in seconds. When it is used up, what was measured decides.
    type: float
  optional_changes:
    description:
      - Optional changes of the sets to select. Only with O(state=present).
    type: list
    elements: str
    default: []
  expected_digest:
    description:
      - Digest of the content that the environment must end with, as RV(digest) of another node has
        it.
      - A node that would end with anything else is refused before anything is written, so all nodes
        of one server run the same code.
    type: str
  gpu:
    description:
      - Compute capability of the GPU, such as V(12.0). By default the driver is asked.
    type: str
  cascade:
    description:
      - With O(state=absent), take off also the sets that need the named ones.
    type: bool
    default: false
  allow_running:
    description:
      - Write although running processes use the files or hold the GPUs. They keep the old code
        until they are restarted.
    type: bool
    default: false
  allow_known_harm:
    description:
      - Measure what is known to do harm on a host like this one, or what this node has rejected
        before with the same content and profile.
    type: bool
    default: false
  compile:
    description:
      - Compile the changed modules ahead of the server when something changes. Needs nvcc on the
        node.
    type: bool
    default: false
  compile_timeout:
    description:
      - Bound O(compile), in seconds.
    type: float
  recover:
    description:
      - Settle a command that was interrupted on the node (killed, power loss) before anything else.
        Without it such a node fails.
    type: bool
    default: false
  not_applicable:
    description:
      - What to do on a node whose versions or GPU no set was made for.
      - With V(ok) the task succeeds without a change and RV(outcome) is V(not-applicable).
    type: str
    choices: [fail, ok]
    default: fail
attributes:
  check_mode:
    description: Can run in check mode and predict the change without writing.
    support: full
  diff_mode:
    description: Returns the unified diffs of the plan.
    support: full
  async:
    description:
      - Can be run with C(async); a verification starts the server several times and may take an
        hour.
    support: full
notes:
  - With C(async), give O(max_time) well below the time that C(async) allows. A task whose time is
    up is killed, and the environment is settled by the next run with O(recover=true).
  - Running servers keep the old code until they are restarted with the options of RV(launch).
seealso:
  - module: sm120patch.fleet.environment_info
  - module: sm120patch.fleet.audit_info
"""

EXAMPLES = r"""
- name: Patch one node, measured there
  sm120patch.fleet.patch_set:
    environment: /opt/sglang
    sets: [allreduce-fusion]
    profile: /etc/sm120patch/profile.toml
    max_time: 3000
  async: 3600
  poll: 30
  register: canary

- name: The same content on all others, or nothing
  sm120patch.fleet.patch_set:
    environment: /opt/sglang
    sets: [allreduce-fusion]
    profile: /etc/sm120patch/profile.toml
    expected_digest: "{{ hostvars[groups['canary'][0]].canary.digest }}"

- name: Stage in an image build, where there is no GPU
  sm120patch.fleet.patch_set:
    environment: /opt/sglang
    sets: [allreduce-fusion]
    gpu: "12.0"
    verify: false

- name: Measure what an image brought along
  sm120patch.fleet.patch_set:
    environment: /opt/sglang
    sets: [allreduce-fusion]
    state: verified
    profile: /etc/sm120patch/profile.toml

- name: Take everything off
  sm120patch.fleet.patch_set:
    environment: /opt/sglang
    all: true
    state: absent
"""

RETURN = r"""
outcome:
  description:
    - What was done, read back from disk.
    - V(planned) in check mode where something would be done.
    - V(rejected) after a verification that did not pass; every file holds its content from before,
      and the task failed.
  returned: success, or failed after something was done
  type: str
  sample: applied
  choices:
    - nothing
    - planned
    - staged
    - applied
    - verified
    - rejected
    - reverted
    - compiled
    - not-applicable
states:
  description:
    - Set -> its state on the node now, dependencies included; in check mode the state from before.
    - It is V(applied) only with evidence of a real server, else V(applied (simulated)) or
      V(applied (rehearsal)). The bare state is in RV(sets).
  returned: when the node could be looked at
  type: dict
  sample: {"allreduce-fusion": "applied"}
sets:
  description: The same sets as C(sm120patch status) describes them.
  returned: when the node could be looked at
  type: list
  elements: dict
  contains:
    id:
      description: Name of the set.
      type: str
      returned: always
    state:
      description: State of the set.
      type: str
      returned: always
    label:
      description: State for people; names evidence that is not real.
      type: str
      returned: always
    counts:
      description: True only for a set that is applied with real evidence.
      type: bool
      returned: always
    reason:
      description: Why it is in that state.
      type: str
      returned: always
    role:
      description: V(requested) or V(dependency) for a set on disk; empty otherwise.
      type: str
      returned: always
    revision:
      description: Revision of the set.
      type: int
      returned: always
    with:
      description: Optional changes that were selected.
      type: list
      elements: str
      returned: always
    evidence:
      description: The verification that decided; null without one.
      type: dict
      returned: always
digest:
  description:
    - Names the content that the request comes to, equal on all nodes with equal code. See
      O(expected_digest).
    - It is the same in check mode, when the change is made and when there is nothing left to do.
  returned: when there is a plan
  type: str
  sample: 50c9a5e4c2a7a6b1c3c4f0b2a53c0e8d57de60aaf9c8f8ab0f3cbfe4a7a3d1c2
digest_before:
  description: Names the content that was on disk before.
  returned: when the node could be looked at
  type: str
digest_after:
  description:
    - Names the content that is on disk now, hashed again. Equal to RV(digest_before) in check
      mode.
    - Absent where a command that writes gave no answer, since nobody knows what it left.
  returned: when the node could be looked at, and no command that writes was killed
  type: str
verdict:
  description: How the verification ended; null when nothing was measured.
  returned: success, or failed after something was done
  type: str
  sample: no-regression
verification:
  description: What decided, without the single measurements; null when nothing was measured.
  returned: success, or failed after something was done
  type: dict
  contains:
    verdict:
      description: How it ended.
      type: str
      returned: always
    passed:
      description: Whether that is a pass.
      type: bool
      returned: always
    reasons:
      description: Why.
      type: list
      elements: str
      returned: always
    advice:
      description: What to do next.
      type: str
      returned: always
    kind:
      description: V(real), V(simulated) or V(rehearsal).
      type: str
      returned: always
    goal:
      description: What was demanded.
      type: str
      returned: always
    margin:
      description: Loss that is tolerated, as a fraction.
      type: float
      returned: always
    intervals:
      description: Workload -> ratio of patched over baseline, with its interval.
      type: dict
      returned: always
    ended:
      description: V(clear), V(hopeless), or null when the schedule was used up.
      type: str
      returned: always
    collapse:
      description: The repeat that was broken off.
      type: dict
      returned: always
event:
  description:
    - Number of the verification in the node's history; C(sm120patch report) shows it whole.
  returned: success, or failed after something was done
  type: int
launch:
  description:
    - Options and variables that servers must be started with now; null when nothing was kept.
  returned: success, or failed after something was done
  type: dict
plan:
  description: What was to be done. The diffs are in C(diff), in diff mode.
  returned: when there is a plan
  type: dict
  contains:
    digest:
      description: Names the plan on this node.
      type: str
      returned: always
    content:
      description: The same as RV(digest).
      type: str
      returned: always
    action:
      description: V(apply) or V(revert).
      type: str
      returned: always
    noop:
      description: True when no file and no record changes.
      type: bool
      returned: always
    versions:
      description: Package -> version on the node.
      type: dict
      returned: always
    applicability:
      description: V(confirmed), or V(unconfirmed) while the GPU is unknown.
      type: str
      returned: always
    measures:
      description:
        - Kind of evidence that the profile can give, V(real), V(simulated) or V(rehearsal); null
          without a profile.
      type: str
      returned: when the tool tells it
    doubt:
      description:
        - What is refused without O(allow_known_harm), with C(code) and C(message); null for
          nothing.
      type: dict
      returned: when the tool tells it
    decisions:
      description: What was decided about each change.
      type: list
      elements: dict
      returned: always
    files:
      description: Files with C(before), C(after) and C(pristine) as sha256.
      type: list
      elements: dict
      returned: always
owed:
  description: Sets that had to be measured.
  returned: when there is a plan
  type: list
  elements: str
recovered:
  description: How an interrupted command was settled; null when there was none.
  returned: when the node could be looked at
  type: str
failure:
  description: Why the task failed, as a word.
  returned: failed
  type: str
  choices:
    - no-tool
    - no-answer
    - usage
    - catalogue
    - not-applicable
    - conflict
    - rolled-back
    - recovery-needed
    - not-verified
    - busy
    - host
    - bug
    - interrupted
    - unknown
rc:
  description: Exit code of the tool.
  returned: failed
  type: int
error:
  description:
    - The error as the tool says it, with C(code), C(message), C(hint) and C(details).
    - Null where the tool gave a result, as for a verification that did not pass.
  returned: failed, or not applicable
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sm120patch.fleet.plugins.module_utils.cli import (
    COMMON,
    ENVIRONMENT,
    give_up,
)
from ansible_collections.sm120patch.fleet.plugins.module_utils.patching import Task

ARGUMENTS = {
    **COMMON,
    **ENVIRONMENT,
    "sets": {"type": "list", "elements": "str", "aliases": ["name"]},
    "all": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "verified", "absent"], "default": "present"},
    "verify": {"type": "bool", "default": True},
    "profile": {"type": "path"},
    "goal": {"type": "str", "choices": ["speed", "no-regression"]},
    "max_time": {"type": "float"},
    "optional_changes": {"type": "list", "elements": "str", "default": []},
    "expected_digest": {"type": "str"},
    "gpu": {"type": "str"},
    "cascade": {"type": "bool", "default": False},
    "allow_running": {"type": "bool", "default": False},
    "allow_known_harm": {"type": "bool", "default": False},
    "compile": {"type": "bool", "default": False},
    "compile_timeout": {"type": "float"},
    "recover": {"type": "bool", "default": False},
    "not_applicable": {"type": "str", "choices": ["fail", "ok"], "default": "fail"},
}


def contradiction(params: dict[str, Any]) -> str | None:
    """Say which parameters do not go together; None when they do."""
    state = params["state"]
    if bool(params["sets"]) == params["all"]:
        return "give sets with at least one name, or all: true with state: absent"
    for name in ("all", "cascade"):
        if params[name] and state != "absent":
            return f"{name} goes with state: absent"
    if params["optional_changes"] and state != "present":
        return "optional_changes goes with state: present"
    if not params["verify"] and state == "verified":
        return "verify: false contradicts state: verified"
    return None


def main() -> None:
    """Read the parameters and run the task."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        mutually_exclusive=[("environment", "python")],
        required_one_of=[("environment", "python")],
        supports_check_mode=True,
    )
    problem = contradiction(module.params)
    if problem:
        give_up(module, {"msg": problem, "failure": "usage"})
    Task(module).run()


if __name__ == "__main__":
    main()
