"""Check the Ansible collection with Ansible's own tools: ansible-doc, ansible-lint, ansible-test.

They work on a copy, under a home of their own, so that neither the checkout nor ~/.ansible is
written. Needs the extra `dev` (on Python 3.11 or newer) and a package index, nothing else.
"""

from __future__ import annotations

import argparse
import configparser
import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLLECTIONS = ROOT / "sm120patch" / "collections"
FLEET = Path("ansible_collections", "sm120patch", "fleet")
MODULES = ("audit_info", "environment_info", "patch_set")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
BOOTSTRAP = '''\
"""What ansible-test runs for get-pip.py: pip from the interpreter, then what it asks for."""

import subprocess
import sys

words = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
sys.exit(subprocess.run([sys.executable, "-m", "pip", "install", *words]).returncode)
'''
"""In a child, since ensurepip within this process would keep pip from reading its settings."""


class Bench:
    """A copy of the collection, and how Ansible's commands are run on it."""

    def __init__(self, work: Path, home: Path) -> None:
        self.collections = work
        self.fleet = work / FLEET
        self.home = home
        skipped = shutil.ignore_patterns("__pycache__", "output", "integration_config.yml")
        shutil.copytree(COLLECTIONS / FLEET, self.fleet, ignore=skipped)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the commands; ansible-test hands on few of them, but HOME."""
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(self.home),
            "ANSIBLE_HOME": str(self.home / ".ansible"),
            "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
            "ANSIBLE_NOCOLOR": "1",
        }

    def run(self, command: str, *words: str) -> None:
        """Run a command that lies beside this interpreter; SystemExit where it fails."""
        print(f"$ {command} {' '.join(words)}", flush=True)
        executable = Path(sys.executable).with_name(command)
        done = subprocess.run(
            [executable, *words], cwd=self.fleet, env=self.environment, check=False
        )
        if done.returncode:
            raise SystemExit(f"{command} {' '.join(words)}: exit {done.returncode}")

    def documented(self, collections: Path) -> None:
        """Insist that ansible-doc shows every module and role of the collection there."""
        env = {**self.environment, "ANSIBLE_COLLECTIONS_PATH": str(collections)}
        executable = Path(sys.executable).with_name("ansible-doc")
        roles = [path.name for path in (self.fleet / "roles").iterdir()]
        for kind, names in (("module", MODULES), ("role", roles)):
            wanted = [f"sm120patch.fleet.{name}" for name in names]
            words = [executable, "--json", "--type", kind, *wanted]
            print(f"$ ansible-doc --type {kind} {' '.join(wanted)}", flush=True)
            done = subprocess.run(words, env=env, stdout=subprocess.PIPE, check=True)
            # It exits with 0 as well where it finds nothing.
            missing = set(wanted) - {name for name, told in json.loads(done.stdout).items() if told}
            if missing:
                raise SystemExit(f"ansible-doc shows nothing of {', '.join(sorted(missing))}")


def docs(bench: Bench) -> None:
    """Every module and role has documentation that ansible-doc can show."""
    bench.documented(bench.collections)


def build(bench: Bench) -> None:
    """The collection can be packed, and installed from the archive."""
    built, installed = bench.collections / "built", bench.collections / "installed"
    bench.run("ansible-galaxy", "collection", "build", "--output-path", str(built))
    (archive,) = built.iterdir()
    bench.run("ansible-galaxy", "collection", "install", str(archive), "--offline", "--force",
              "--collections-path", str(installed))  # fmt: skip
    bench.documented(installed)


def lint(bench: Bench) -> None:
    """Playbooks, roles and examples satisfy the strictest profile."""
    bench.run("ansible-lint", "--offline", "--profile", "production", "--strict")


def sanity(bench: Bench) -> None:
    """The rules that Ansible has for collections."""
    bench.run("ansible-test", "sanity", "--python", PYTHON, "--color", "no")


def units(bench: Bench) -> None:
    """Its unit tests."""
    bench.run("ansible-test", "units", "--venv", "--python", PYTHON, "--color", "no")


def integration(bench: Bench) -> None:
    """Its integration targets, with the sm120patch beside this interpreter."""
    tool = Path(sys.executable).with_name("sm120patch")
    config = bench.fleet / "tests" / "integration" / "integration_config.yml"
    config.write_text(f"sm120patch_executable: {tool}\n")
    bench.run("ansible-test", "integration", "--local", "--python", PYTHON, "--color", "no")


CHECKS: Mapping[str, Callable[[Bench], None]] = {
    check.__name__: check for check in (docs, build, lint, sanity, units, integration)
}


@contextmanager
def prepared_home(home: Path) -> Iterator[None]:
    """Hold a home for ansible-test: our bootstrap of pip, and the settings of this pip."""
    cache = home / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for other checks that use {home}", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for version in pip_versions():
            (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(BOOTSTRAP)
        settings = home / ".config" / "pip" / "pip.conf"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.touch(mode=0o600)  # an index may be named with a password
        with settings.open("w") as file:
            pip_settings().write(file)
        yield


def pip_versions() -> list[str]:
    """Return the versions of pip for which ansible-test would download a script."""
    spec = importlib.util.find_spec("ansible_test")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("ansible-core is not installed here: the extra `dev` has it")
    (package,) = spec.submodule_search_locations
    source = (Path(package) / "_internal" / "python_requirements.py").read_text()
    return re.findall(r"\bpip='([0-9.]+)'", source)


def pip_settings() -> configparser.ConfigParser:
    """Return what pip is told here, by files and by variables, which ansible-test drops."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found = configparser.ConfigParser(interpolation=None)
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        section = "global" if section == ":env:" else section
        if not found.has_section(section):
            found.add_section(section)
        found.set(section, option, value.strip("'").replace("\\n", "\n"))
    return found


def main() -> None:
    """Run the checks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS], metavar="CHECK",
                        help=f"of {', '.join(CHECKS)} (default: all)")  # fmt: skip
    parser.add_argument("--home", type=Path,
                        default=Path.home() / ".cache" / "sm120patch" / "ansible-test",
                        help="where ansible-test keeps its environments")  # fmt: skip
    given = parser.parse_args()
    if sys.version_info < (3, 11):
        print(f"nothing was checked: ansible-core needs Python 3.11, this is {PYTHON}")
        return
    home = given.home.absolute()
    with prepared_home(home), tempfile.TemporaryDirectory() as work:
        bench = Bench(Path(work), home)
        for name in given.checks or CHECKS:
            CHECKS[name](bench)


if __name__ == "__main__":
    main()
