"""The pieces an audit is made of: a root that nothing leads out of, hashing, the stat cache."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
import zlib
from array import array
from pathlib import Path

import pytest

from sm120patch.audit import hashing, statcache
from sm120patch.audit.files import WIDTH, Digest, Listing, hash_batch, list_package
from sm120patch.audit.hashing import Hasher
from sm120patch.audit.statcache import StatCache
from sm120patch.audit.tree import Tree
from sm120patch.audit.workers import Share
from sm120patch.environment.records import Difference

OLD = time.time_ns() + 10**12
"""As if the listing were made long after the files were written."""


# --- a root ------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    (tmp_path / "root" / "a" / "b" / "file").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    return Tree.at(tmp_path / "root")


@pytest.mark.parametrize(
    ("target", "leads_to"),
    [
        ("/a/b/file", "/a/b/file"),
        ("a/../a/b/file", "/a/b/file"),
        ("../../../../a/b/file", "/a/b/file"),
        ("/a/./b//file", "/a/b/file"),
    ],
)
def test_a_link_is_followed_as_the_inside_would(tree: Tree, target: str, leads_to: str) -> None:
    (Path(tree.root) / "link").symlink_to(target)
    assert tree.real("/link") == leads_to and tree.read("/link") == b"inside"


@pytest.mark.parametrize("target", ["../secret", "{outside}", "a/../../secret", "loop", "../.."])
def test_no_link_leads_out_or_on_for_ever(tree: Tree, target: str, tmp_path: Path) -> None:
    (Path(tree.root) / "loop").symlink_to("loop")
    (Path(tree.root) / "link").symlink_to(target.format(outside=tmp_path / "secret"))
    assert tree.read("/link") is None
    assert not tree.is_file("/link/secret") and tree.read("/../secret") is None


def test_a_directory_that_becomes_a_link_after_the_look_is_not_entered(
    tree: Tree, tmp_path: Path
) -> None:
    real = tree.real("/a/b")
    (Path(tree.root) / "a").rename(tmp_path / "moved")
    (Path(tree.root) / "a").symlink_to(tmp_path / "moved")
    with pytest.raises(OSError):
        tree.open_directory(real)


def test_the_root_of_another_mount_namespace_is_not_taken_for_our_own(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/proc/PID/root` of a container reads as a link to `/`."""
    plain = os.path.realpath
    monkeypatch.setattr(
        os.path, "realpath", lambda p, **k: "/" if str(p) == tree.root else plain(p, **k)
    )
    found = Tree.at(Path(tree.root))
    assert found.root == tree.root and found.read("/a/b/file") == b"inside"


def test_a_pipe_in_place_of_a_file_does_not_block(tree: Tree) -> None:
    os.mkfifo(Path(tree.root) / "pipe")
    assert tree.read("/pipe") is None and not tree.is_file("/pipe")


def test_a_file_of_more_than_the_limit_is_not_read(tree: Tree) -> None:
    assert tree.read("/a/b/file", 5) is None and tree.read("/a/b/file", 6) == b"inside"


# --- listing and hashing -----------------------------------------------------------------------


def make_package(site: Path, count: int = 3) -> None:
    for number in range(count):
        path = site / "pkg" / f"d{number % 7}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number)


def hashed(site: Path, hasher: Hasher, tree: Tree | None = None) -> dict[str, str]:
    where = tree or Tree()
    listing = list_package(where, str(site), "pkg")
    found = hasher.digests(where, str(site), listing, range(len(listing.paths)))
    return {listing.paths[i]: d.sha256.hex() for i, d in found.items()}


def expected(site: Path) -> dict[str, str]:
    return {
        p.relative_to(site).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in site.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_file_is_hashed_whatever_the_number_of_workers(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "POOL_FROM", 0)
    make_package(tmp_path, 2500)
    (tmp_path / "pkg" / "__pycache__").mkdir()
    (tmp_path / "pkg" / "__pycache__" / "f.pyc").write_bytes(b"no")
    (tmp_path / "pkg" / "big").write_bytes(os.urandom(3 << 20))
    with Hasher(workers) as hasher:
        assert hashed(tmp_path, hasher) == expected(tmp_path)
        assert hasher.bytes == sum(p.stat().st_size for p in tmp_path.rglob("*.py")) + (3 << 20)


def test_links_to_files_are_followed_and_those_to_directories_are_listed(tmp_path: Path) -> None:
    make_package(tmp_path / "store")
    site = tmp_path / "site"
    (site / "pkg").mkdir(parents=True)
    (site / "pkg" / "file.py").symlink_to(tmp_path / "store" / "pkg" / "d1" / "f1.py")
    (site / "pkg" / "directory").symlink_to(tmp_path / "store" / "pkg")
    (site / "pkg" / "circle").symlink_to(site / "pkg")
    (site / "pkg" / "dangling").symlink_to("nowhere")
    listing = list_package(Tree(), str(site), "pkg", ["pkg/directory/d2/f2.py", "pkg/directory/no"])
    store = str(tmp_path / "store" / "pkg")
    assert listing.leads == {"pkg/circle": str(site / "pkg"), "pkg/directory": store}
    assert listing.paths[-1] == "pkg/directory/d2/f2.py", "what is asked for is looked at"
    with Hasher(1) as hasher:
        found = hashed(site, hasher)
    one = hashlib.sha256(b"x").hexdigest()
    assert found == {"pkg/circle": "", "pkg/directory": "", "pkg/file.py": one}


def test_a_package_that_is_a_link_as_a_whole_is_entered(tmp_path: Path) -> None:
    make_package(tmp_path / "store")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "pkg").symlink_to(tmp_path / "store" / "pkg")
    with Hasher(1) as hasher:
        assert len(hashed(tmp_path / "site", hasher)) == 3


@pytest.mark.parametrize("target", ["/", "..", "."])
def test_a_package_that_leads_to_where_it_lies_is_not_entered(tmp_path: Path, target: str) -> None:
    (tmp_path / "pkg").symlink_to(target)
    listing = list_package(Tree(), str(tmp_path), "pkg")
    assert listing.paths == [] and "in which it lies itself" in listing.problems[0]


def test_a_directory_that_is_there_twice_is_entered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount can do that, for which it takes root: here the kernel's word for it is changed."""
    make_package(tmp_path)
    plain = os.fstat
    first = (tmp_path / "pkg" / "d0").stat()

    def fstat(fd: int) -> os.stat_result:
        found = plain(fd)
        same = Path(f"/proc/self/fd/{fd}").readlink().name in ("d0", "d1")
        return first if same else found

    monkeypatch.setattr(os, "fstat", fstat)
    listing = list_package(Tree(), str(tmp_path), "pkg", ["pkg/d1/f1.py"])
    assert listing.leads == {"pkg/d1": str(tmp_path / "pkg" / "d0")}
    assert listing.paths == ["pkg/d0/f0.py", "pkg/d1", "pkg/d2/f2.py", "pkg/d1/f1.py"]


def test_what_is_no_readable_file_has_no_digest(tmp_path: Path) -> None:
    make_package(tmp_path, 1)
    os.mkfifo(tmp_path / "pkg" / "pipe")
    with Hasher(1) as hasher:
        assert hashed(tmp_path, hasher)["pkg/pipe"] == ""


def test_an_inode_with_several_names_is_hashed_once(tmp_path: Path) -> None:
    make_package(tmp_path, 5)
    other = tmp_path / "other"
    (other / "pkg").mkdir(parents=True)
    for path in (tmp_path / "pkg").rglob("*.py"):
        os.link(path, other / "pkg" / path.name)
    with Hasher(1) as hasher:
        hashed(tmp_path, hasher)
        before = hasher.bytes
        assert len(hashed(other, hasher)) == 5 and hasher.bytes == before
        (other / "pkg" / "f3.py").write_bytes(b"new")  # through the link: both names
        assert hashed(other, hasher)["pkg/f3.py"] == hashlib.sha256(b"new").hexdigest()


def _fatal(number: int) -> bytes:
    if number == 3 and os.getpid() != PARENT:
        os.kill(os.getpid(), signal.SIGKILL)
    return b"%d," % (number * 2)


PARENT = os.getpid()


def test_a_process_that_is_killed_loses_nothing() -> None:
    global PARENT
    PARENT = os.getpid()
    killed, whole = Share(_fatal, range(40)), Share(_fatal, range(4, 40))
    assert killed.running and whole.running
    assert killed.result() == b"".join(b"%d," % (n * 2) for n in range(40))
    assert whole.result() == b"".join(b"%d," % (n * 2) for n in range(4, 40))
    assert not killed.running


def test_a_result_of_any_length_comes_whole() -> None:
    assert Share(bytes, []).result() == b""
    assert Share(bytes, [3 << 20, 0, 5]).result() == bytes((3 << 20) + 5)


def test_a_share_that_nobody_asks_for_ends(tmp_path: Path) -> None:
    def endless(_item: int) -> bytes:
        time.sleep(3600)
        return b""

    share = Share(endless, [1])
    pid = share._pid
    assert Path(f"/proc/{pid}").exists()
    share.close()
    assert not Path(f"/proc/{pid}").exists() and not share.running


def test_processes_end_with_the_one_that_started_them() -> None:
    import subprocess
    import sys

    script = (
        "import time\n"
        "from sm120patch.audit.workers import Share\n"
        "def slowly(item):\n"
        "    time.sleep(0.05)\n"
        "    return b'x' * 100_000\n"
        "shares = [Share(slowly, range(5000)) for _ in range(2)]\n"
        "print(*(share._pid for share in shares), flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pids = [int(word) for word in child.stdout.readline().split()]
    child.kill()
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2 and not [p for p in pids if Path(f"/proc/{p}").exists()]


# --- the stat cache ----------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    make_package(site, 6)
    return site


def listed(site: Path) -> Listing:
    return list_package(Tree(), str(site), "pkg")


def keep(cache: StatCache, site: Path, at: int = OLD) -> Listing:
    listing = listed(site)
    with Hasher(1) as hasher:
        digests = hasher.digests(Tree(), str(site), listing, range(len(listing.paths)))
    differences = [Difference("pkg/x.py", "added", None, "ab")]
    cache.write("place", "basis", listing, digests, (6, differences), at)
    return listing


def test_what_is_kept_comes_back(tmp_path: Path, site: Path) -> None:
    cache = StatCache(tmp_path / "cache")
    listing = keep(cache, site)
    found = cache.read("place")
    assert found is not None and found.same(listed(site)) and found.basis == "basis"
    assert found.differences == (Difference("pkg/x.py", "added", None, "ab"),)
    names = [hashlib.sha256((site / p).read_bytes()).digest() for p in listing.paths]
    assert [found.digest(i).sha256 for i in range(6)] == names
    assert cache.read("another place") is None


@pytest.mark.parametrize("how", ["content", "touch", "replace", "remove", "add"])
def test_a_file_that_changed_is_not_believed(tmp_path: Path, site: Path, how: str) -> None:
    cache = StatCache(tmp_path / "cache")
    keep(cache, site)
    path = site / "pkg" / "d2" / "f2.py"
    times = path.stat()
    if how == "content":  # same size, and the old time put back: the inode's ctime tells
        path.write_bytes(b"yy")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif how == "replace":
        other = path.with_name("new")
        other.write_bytes(b"yy")
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        other.replace(path)
    elif how == "touch":
        path.touch()
    elif how == "remove":
        path.unlink()
    else:
        path.with_name("extra.py").write_bytes(b"")
    found = cache.read("place")
    listing = listed(site)
    assert found is not None and not found.same(listing)
    known = {listing.paths[i] for i in found.known(listing, blobs=False)}
    assert known == set(listing.paths) - {"pkg/d2/f2.py", "pkg/d2/extra.py"} | (
        {"pkg/d2/f2.py"} if how == "add" else set()
    )


def test_a_file_that_was_fresh_when_it_was_hashed_is_hashed_again(
    tmp_path: Path, site: Path
) -> None:
    cache = StatCache(tmp_path / "cache")
    path = site / "pkg" / "d2" / "f2.py"
    newest = path.stat().st_ctime_ns
    keep(cache, site, at=newest + statcache.RACY_NS)
    found = cache.read("place")
    assert found is not None and not found.same(listed(site))
    keep(cache, site, at=newest + 2 * statcache.RACY_NS)
    found = cache.read("place")
    assert found is not None and found.same(listed(site))


def test_times_that_a_mounted_image_makes_up_are_not_believed(tmp_path: Path, site: Path) -> None:
    """In squashfs both times are the whole second that the image holds, and inodes are counted."""
    cache = StatCache(tmp_path / "cache")
    whole = 1_700_000_000 * 10**9
    for change_time, believed in ((whole, False), (whole + 1, True)):
        listing = listed(site)
        for index in range(len(listing.paths)):
            listing.signs[index * WIDTH + 1 : index * WIDTH + 3] = array("q", [whole, change_time])
        with Hasher(0) as hasher:
            wanted = range(len(listing.paths))
            digests = hasher.digests(Tree(), str(site), listing, wanted)
        cache.write("place", "basis", listing, digests, (0, ()), whole + 10**12)
        found = cache.read("place")
        assert found is not None and found.same(listing) is believed
        assert len(found.known(listing, blobs=False)) == (len(listing.paths) if believed else 0)


def test_a_cache_for_digests_without_git_names_does_not_answer_for_a_checkout(
    tmp_path: Path, site: Path
) -> None:
    cache = StatCache(tmp_path / "cache")
    listing = keep(cache, site)
    found = cache.read("place")
    assert found is not None
    assert found.known(listing, blobs=True) == {} and len(found.known(listing, blobs=False)) == 6


@pytest.mark.parametrize("damage", ["empty", "half", "flipped", "garbage", "link", "directory"])
def test_a_damaged_cache_counts_for_nothing(tmp_path: Path, site: Path, damage: str) -> None:
    cache = StatCache(tmp_path / "cache")
    keep(cache, site)
    (file,) = (tmp_path / "cache").iterdir()
    data = file.read_bytes()
    file.unlink()
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        file.symlink_to(tmp_path / "elsewhere")
    elif damage == "directory":
        file.mkdir()
    else:
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 1
        file.write_bytes(
            {"empty": b"", "half": data[: len(data) // 2], "flipped": bytes(flipped),
             "garbage": b"\0" * 5000}[damage]
        )  # fmt: skip
    assert cache.read("place") is None


HEAD = {
    "format": 1, "place": "place", "basis": "b", "count": 0, "names": 0, "blobs": False,
    "compared": 0, "differences": None,
}  # fmt: skip
FORGED = (
    "[]",
    "{}",
    "nul",
    json.dumps({**HEAD, "format": 2}),
    json.dumps({**HEAD, "count": -1}),
    json.dumps({**HEAD, "count": 10**12}),
    json.dumps({**HEAD, "names": "x"}),
    json.dumps({**HEAD, "differences": [["../../etc/passwd", "added", None, None]]}),
    json.dumps({**HEAD, "differences": [["a", "added", 7, None]]}),
)


def test_the_head_that_is_forged_below_is_a_good_one(tmp_path: Path) -> None:
    assert forged(tmp_path, json.dumps(HEAD)).read("place") is not None


def forged(directory: Path, head: str) -> StatCache:
    cache = StatCache(directory / "cache")
    cache.write("place", "basis", Listing(), {}, (0, ()), OLD)
    (file,) = (directory / "cache").iterdir()
    body = head.encode() + b"\n"
    file.write_bytes(b"%08x\n" % zlib.crc32(body) + body)
    return cache


@pytest.mark.parametrize("head", FORGED)
def test_a_forged_cache_with_a_true_checksum_counts_for_nothing(tmp_path: Path, head: str) -> None:
    assert forged(tmp_path, head).read("place") is None


def test_a_cache_that_cannot_be_written_is_no_matter(tmp_path: Path, site: Path) -> None:
    (tmp_path / "file").write_text("")
    keep(StatCache(tmp_path / "file" / "cache"), site)


def test_no_number_of_a_file_system_is_too_big(tmp_path: Path) -> None:
    listing = Listing()
    path = tmp_path / "f"
    path.write_bytes(b"")
    os.utime(path, (2**33, 2**33))
    listing.add("f", path.stat())
    assert isinstance(listing.signs, array) and len(listing.sign(0)) == 4


def test_a_batch_of_a_directory_that_is_gone_has_no_digests(tmp_path: Path) -> None:
    make_package(tmp_path, 2)
    listing = listed(tmp_path)
    (batch,) = hashing.batches(Tree(), str(tmp_path), listing, range(2), blobs=True)
    good = hash_batch(batch)
    assert [len(d.blob) for d in good] == [20, 20]
    (tmp_path / "pkg").rename(tmp_path / "gone")
    assert hash_batch(batch) == [Digest(b"", b"")] * 2
