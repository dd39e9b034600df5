"""Which nodes there should be: lists of names, and what Ansible says of its inventory."""

from __future__ import annotations

import json

import pytest

from sm120patch.fleet.expected import combined, inventory_of, names_of

INVENTORY = {
    "_meta": {"hostvars": {"alone": {}, "gpu-01": {"a": 1}}},
    "all": {"children": ["ungrouped", "servers"]},
    "ungrouped": {"hosts": ["login"]},
    "servers": {"children": ["s0", "s1"]},
    "s0": {"hosts": ["gpu-01", "gpu-02"]},
    "s1": {"hosts": ["gpu-03"], "children": ["servers"]},
}


def test_a_list_has_one_name_a_line():
    assert names_of(b"# all\ngpu-01\n\n gpu-02  # new\ngpu-01\n10.0.0.7\n") == (
        "gpu-01", "gpu-02", "10.0.0.7",
    )  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [b"", b"# nothing\n", b"[gpus]\ngpu-01\n", b"all:\n  hosts:\n", b"gpu-01 ansible_port=22\n",
     b"---\nall:\n", b'{"all": {}}', b"\xff\n", b"a\x1bb\n"],
)  # fmt: skip
def test_what_is_no_list_is_left_to_others(content: bytes):
    assert names_of(content) is None


def test_groups_of_an_inventory_hold_the_nodes_of_the_groups_below_them():
    found = inventory_of(json.dumps(INVENTORY).encode())
    assert found is not None
    assert set(found["all"]) == {"login", "gpu-01", "gpu-02", "gpu-03", "alone"}
    assert found["servers"] == ("gpu-01", "gpu-02", "gpu-03")
    assert found["s0"] == ("gpu-01", "gpu-02") and set(found["s1"]) == set(found["servers"])


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"gpus": {}}', b"all: {}", b"[" * 100_000]
)
def test_what_is_no_inventory_is_none(content: bytes):
    assert inventory_of(content) is None


def test_odd_values_in_an_inventory_are_left_out():
    odd = {"all": {"hosts": ["a", "b c", 7, None, ["x"]], "children": {"s": 1}}, "s": 3}
    found = inventory_of(json.dumps(odd).encode())
    assert found is not None and set(found["all"]) == {"a", "7"}


def test_members_of_a_group_are_expected_too():
    found = combined(["a"], [("s0", ("a", "b")), ("s0", ("c",))])
    assert found.nodes == ("a", "b", "c") and found.groups == {"s0": ("a", "b", "c")}
