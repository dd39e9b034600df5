"""One task of the collection, run by Ansible on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.nodes import COLLECTIONS, TOOL, ansible

TELL = {
    "name": "Tell what it returned",
    "ansible.builtin.copy": {"content": "{{ told | to_json }}", "dest": "{{ telling }}"},
    "check_mode": False,
    "diff": False,
}


def task(
    root: Path, module: str, keywords: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Run a module of the collection and return its result; files go below `root`.

    `keywords` are those of the task, such as `check_mode` or `async`.
    """
    told = root / "told.json"
    asked = {
        f"sm120patch.fleet.{module}": {"executable": str(TOOL), **options},
        "register": "told",
        "ignore_errors": True,
        **(keywords or {}),
    }
    variables = {
        "ansible_python_interpreter": sys.executable,
        "ansible_async_dir": str(root / "async"),
        "telling": str(told),
    }
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": variables}
    (root / "play.json").write_text(json.dumps([{**play, "tasks": [asked, TELL]}]))
    env = {
        **os.environ,
        "ANSIBLE_HOME": str(root / "ansible"),
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_REMOTE_TMP": str(root / "remote"),
        "ANSIBLE_NOCOLOR": "1",
    }
    words = [ansible(), "-i", "localhost,", "play.json"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(told.read_text())
    told.unlink()
    return result


def patch_set(
    root: Path, options: list[str], keywords: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """The same for `patch_set`, on the environment that the tests' options for commands name."""
    named = dict(zip(options[::2], options[1::2], strict=True))
    where = {"environment": named["--env"], "catalogue": named["--catalogue"]}
    return task(root, "patch_set", keywords, **where, **more)
