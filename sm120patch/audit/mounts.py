"""Which directories are mount points, and of what kind of file system. Reads /proc only."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_MOUNTINFO = Path("/proc/self/mountinfo")
NETWORK = frozenset((
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "weka",
    "wekafs", "9p", "virtiofs", "orangefs", "pvfs2", "davfs", "autofs", "ocfs2", "gfs2", "daos",
    "fuse.glusterfs", "glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone",
    "fuse.juicefs", "fuse.weka", "fuse.ceph", "fuse.lustre", "fuse.davfs", "fuse.blobfuse",
    "fuse.blobfuse2", "fuse.goofys", "fuse.daos", "fuse.alluxio",
))  # fmt: skip
KERNEL = frozenset((
    "proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs",
    "configfs", "pstore", "bpf", "mqueue", "hugetlbfs", "fusectl", "efivarfs", "binfmt_misc",
    "rpc_pipefs", "nsfs", "selinuxfs",
))  # fmt: skip
"""File systems without packages in them."""


class Mount(NamedTuple):
    """One mount point of this process's mount namespace."""

    path: str
    kind: str
    source: str


def mounts(file: Path = _MOUNTINFO) -> Mapping[str, Mount]:
    """Return mount point -> mount; the topmost where several lie over each other."""
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        fields = line.split(" ")
        try:
            rest = fields[fields.index("-", 6) + 1 :]
            found[_plain(fields[4])] = Mount(_plain(fields[4]), rest[0], _plain(rest[1]))
        except (ValueError, IndexError):
            continue
    return found


def _plain(text: str) -> str:
    """Undo the octal escapes of space, tab, newline and backslash."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
