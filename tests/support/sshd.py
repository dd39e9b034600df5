"""Real SSH servers on loopback ports: own host keys, own configuration, no privileges needed."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.serving import wait_for
from tests.support.simulated import free_port


def find_sshd() -> str:
    """Absolute path of sshd, which it needs to start itself again; skips where it cannot run."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which("sshd", path=places)
    if found is None or shutil.which("ssh") is None:
        pytest.skip("ssh or sshd is not installed: `apt-get install openssh-server`, or .ci/run")
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("sshd")
        except KeyError:
            pytest.skip("root can run sshd only where the user sshd exists: install its package")
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    return found


def make_key(path: Path) -> str:
    """Make a key pair; return the public key."""
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.stem, "-f", str(path)]
    subprocess.run(words, check=True)
    return path.with_name(path.name + ".pub").read_text()


class Sshd:
    """One server for the user of the tests; `home` is where its sessions find themselves."""

    def __init__(self, root: Path, home: Path) -> None:
        self.executable = find_sshd()
        self.root = root
        self.port = free_port()
        root.mkdir(parents=True)
        self.key = root / "client_key"
        (root / "authorized_keys").write_text(make_key(self.key))
        host_key = " ".join(make_key(root / "host_key").split()[:2])
        (root / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}\n")
        (root / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {root}/host_key\n"
            f"AuthorizedKeysFile {root}/authorized_keys\nPidFile none\nStrictModes no\nUsePAM no\n"
            f"PasswordAuthentication no\nPermitRootLogin prohibit-password\nSetEnv HOME={home}\n"
        )
        self.start()

    def start(self) -> None:
        """Start it and wait until it listens."""
        with (self.root / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.executable, "-D", "-e", "-f", str(self.root / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(self.listens)

    def listens(self) -> bool:
        assert self.process.poll() is None, (self.root / "sshd.log").read_text()
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """End it with everything that runs in its sessions, as a power failure does."""
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for process in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(below, timeout=10)
        self.process.wait()

    @property
    def variables(self) -> dict[str, Any]:
        """What the inventory says of the node that is reached through it."""
        options = {
            "UserKnownHostsFile": self.root / "known_hosts",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "ConnectTimeout": 10,
            # A connection that is kept would make a stopped node look alive.
            "ControlMaster": "no",
            "ControlPath": "none",
        }
        return {
            "ansible_connection": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_args": "-F none " + " ".join(f"-o {k}={v}" for k, v in options.items()),
        }
