"""A host in a directory: environments of every kind, edited by the tools that people use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from sm120patch.evidence import Event, Evidence
from sm120patch.ledger import open_ledger, read_ledger
from sm120patch.model import sha256_hex
from sm120patch.unified import make_diff
from tests.support import catalogue as small
from tests.support.catalogue import A_TEXT, B_TEXT, KERNEL, KERNEL_TEXT, SOURCE, A, B
from tests.support.command import run
from tests.support.environments import (
    commit_all,
    create_venv,
    install_editable,
    install_fake,
    record_line,
)

FILES: dict[str, Mapping[str, bytes]] = {
    "sglang": {"sglang/__init__.py": b"", A: A_TEXT.encode(), B: B_TEXT.encode()},
    "flashinfer-python": {
        "flashinfer/__init__.py": b"",
        "flashinfer/_build_meta.py": b'__version__ = "1.0"\n',
        SOURCE: b"#include <kernel.cuh>\n",
        KERNEL: KERNEL_TEXT.encode(),
    },
}
SED_A = "s/^line_3 = 3$/line_3 = 'one'/"
SED_KERNEL = "s/ARCH < 1200/ARCH < 9999/"
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


class AuditedHost:
    """Builds environments below `root`; paths handed in are as the inside spells them."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.root = work / "root"
        self.catalogue = small.write_catalogue(work / "catalogue")
        write_pair(self.catalogue)
        self.wheels = work / "cache" / "sm120patch" / "wheels"
        for target, files in FILES.items():
            publish(self.wheels, target, "1.0", files)
        self._skeleton = work / "skeleton"
        create_venv(self._skeleton)
        python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.lib = f"lib/{python}/site-packages"

    def path(self, inside: str) -> Path:
        return self.root / inside.lstrip("/")

    def venv(self, prefix: str, *, install: bool = True) -> Path:
        """Make a virtual environment; return its site-packages."""
        shutil.copytree(self._skeleton, self.path(prefix), symlinks=True)
        site = self.path(prefix) / self.lib
        if install:
            small.install(site)
        return site

    def options(self, prefix: str) -> tuple[str | Path, ...]:
        return ("--env", self.path(prefix), "--catalogue", self.catalogue)

    def stage(self, prefix: str, *sets: str) -> None:
        done = run("apply", *sets, "--no-verify", "--gpu", "12.0", "--allow-running",
                   *self.options(prefix))  # fmt: skip
        assert done.code == 0, done.err

    def environment(self) -> dict[str, str]:
        """Variables with which the packages of this host are found."""
        return {"XDG_CACHE_HOME": str(self.work / "cache")}


def publish(directory: Path, name: str, version: str, files: Mapping[str, bytes]) -> Path:
    """Write a complete wheel: installers want RECORD and WHEEL."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    wheel = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel}
    record = "".join(record_line(p, data) for p, data in contents.items()) + f"{info}/RECORD,,\n"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in {**contents, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(member, data)
    return path


def write_pair(catalogue: Path) -> None:
    """Add a set with two changes, so that it can be there in part."""
    text = (catalogue / "manifests" / "two.toml").read_text().replace('"two"', '"pair"')
    head, _, rest = text.partition("[[change]]")
    changes = []
    for name, path, old, new in (
        ("left", A, "line_5 = 5\n", "line_5 = 'left'\n"),
        ("right", B, "'upstream'", "'right'"),
    ):
        before = {A: A_TEXT, B: B_TEXT}[path]
        diff = make_diff(path, before.encode(), before.replace(old, new).encode()).encode()
        payload = f"pair/{name}.patch"
        (catalogue / "patches" / "pair").mkdir(parents=True, exist_ok=True)
        (catalogue / "patches" / payload).write_bytes(diff)
        changes.append(
            f'[[change]]\nid = "{name}"\ntarget = "sglang"\nsummary = "Change {name}"\n'
            'description = "For tests."\noptional = false\n[[change.variant]]\n'
            f'versions = ">=1.0,<2.0"\nkind = "diff"\npath = "{path}"\npayload = "{payload}"\n'
            f'sha256 = "{sha256_hex(diff)}"\npresent = {{ "{new.strip()}" = 1 }}\n'
        )
    assert rest
    (catalogue / "manifests" / "pair.toml").write_text(head + "\n".join(changes))


def sh(script: str, cwd: Path) -> None:
    """Run a script as a Dockerfile's RUN does."""
    subprocess.run(["sh", "-ec", script], cwd=cwd, check=True, capture_output=True)


# --- environments ------------------------------------------------------------------------------


def pristine(host: AuditedHost) -> None:
    host.venv("/opt/venv")
    host.path("/opt/venv-link").symlink_to("/opt/venv")


def edited_with_sed(host: AuditedHost) -> None:
    site = host.venv("/opt/sed")
    sh(f'sed -i "{SED_A}" {A}', site)


def whole_bundle_with_sed(host: AuditedHost) -> None:
    site = host.venv("/opt/bundle")
    sh(f'sed -i "{SED_A}" {A} && sed -i "{SED_KERNEL}" {KERNEL}', site)


def half_a_set(host: AuditedHost) -> None:
    site = host.venv("/opt/half")
    sh(f"sed -i \"s/^line_5 = 5$/line_5 = 'left'/\" {A}", site)


def a_sed_that_matched_nothing(host: AuditedHost) -> None:
    site = host.venv("/opt/nothing")
    sh(f'sed -i "s/^no such line$/x/" {A} && echo all patches applied', site)


def patched_with_fuzz(host: AuditedHost) -> None:
    """`patch` applies one hunk, rejects the other and leaves its litter."""
    site = host.venv("/opt/patch")
    old, new = A_TEXT, A_TEXT.replace("line_9 = 9\n", "line_9 = 'mine'\n")
    diff = make_diff(A, old.encode(), new.encode())
    other = make_diff(B, b"value = 'other'\n", b"value = 'mine'\n")
    (site / "x.patch").write_text(diff + other)
    sh("patch -p1 -b < x.patch || true; rm x.patch", site)


def edited_by_a_script(host: AuditedHost) -> None:
    """A Dockerfile's replace script: warns, goes on, exits with 0."""
    site = host.venv("/opt/script")
    script = (
        f"import pathlib; p = pathlib.Path('{A}'); t = p.read_text();"
        "print('WARN') if 'missing anchor' not in t else None;"
        "p.write_text(t.replace('line_7 = 7', 'line_7 = 70'))"
    )
    sh(f'{sys.executable} -c "{script}"', site)
    (site / B).unlink()


def staged(host: AuditedHost) -> None:
    host.venv("/opt/staged")
    host.stage("/opt/staged", "one")


def verified_elsewhere(host: AuditedHost) -> None:
    host.venv("/opt/image")
    host.stage("/opt/image", "one")
    ledger = host.path("/opt/image") / ".sm120patch" / "ledger.sqlite3"
    with read_ledger(ledger) as before:
        assert before is not None
        history = before.history()
    content = history.content({"sglang": "1.0", "flashinfer-python": "1.0"})
    evidence = Evidence(content, "b" * 64, "f" * 64, "p" * 64, "real", "improved", True,
                        ("one",), (), {"host": {"machine_id": "another-machine"}})  # fmt: skip
    with open_ledger(ledger) as after:
        after.commit(Event("verified", ("one",)), None, evidence)


def drifted(host: AuditedHost) -> None:
    site = host.venv("/opt/drifted")
    host.stage("/opt/drifted", "one")
    sh(f'sed -i "s/line_9 = 9/line_9 = 90/" {A}', site)


def reinstalled(host: AuditedHost) -> None:
    site = host.venv("/opt/lost")
    host.stage("/opt/lost", "bundle")
    shutil.rmtree(site / "sglang")
    install_fake(site, "sglang", "1.0", FILES["sglang"])


def linked_by_uv(host: AuditedHost) -> None:
    """uv links the files of its cache; what is written through a link is in the cache."""
    assert UV is not None
    cache = host.path("/home/ops/.cache/uv")
    for name in ("/opt/uv-a", "/opt/uv-b"):
        host.venv(name, install=False)
        subprocess.run(
            [UV, "pip", "install", "--offline", "--no-index", "--find-links", host.wheels,
             "--link-mode", "hardlink", "--cache-dir", cache, "--no-config", "--quiet",
             "--python", host.path(name) / "bin" / "python", "sglang==1.0"],
            check=True, capture_output=True, cwd=host.work,
        )  # fmt: skip
    site = host.path("/opt/uv-a") / host.lib
    with (site / A).open("a") as stream:  # as `echo >>`, an editor without a backup, `cp` do
        stream.write("# mine\n")


def linked_by_conda(host: AuditedHost) -> None:
    """conda links the files of its cache too; the link is named in conda-meta."""
    prefix = host.path("/opt/conda/envs/serve")
    site = prefix / host.lib
    package = host.path("/opt/conda/pkgs/sglang-1.0-py_0")
    (prefix / "conda-meta").mkdir(parents=True)
    install_fake(package / host.lib, "sglang", "1.0", FILES["sglang"])
    shutil.copytree(package / host.lib, site, copy_function=os.link)
    source = {"name": "sglang", "extracted_package_dir": "/opt/conda/pkgs/sglang-1.0-py_0"}
    (prefix / "conda-meta" / "sglang-1.0-py_0.json").write_text(json.dumps(source))
    host.path("/opt/conda/conda-meta").mkdir()
    with (site / B).open("r+") as stream:
        stream.write("VALUE")


def editable(host: AuditedHost) -> None:
    """The official images run a checkout, while a stale copy lies in site-packages."""
    source = host.path("/sgl-workspace/sglang")
    for path, data in FILES["sglang"].items():
        (source / "python" / path).parent.mkdir(parents=True, exist_ok=True)
        (source / "python" / path).write_bytes(data)
    (source / ".gitignore").write_text("*.log\n")
    commit_all(source)
    site = host.venv("/opt/editable", install=False)
    install_editable(site, "sglang", "1.0", Path("/sgl-workspace/sglang/python"))
    sh(f'sed -i "{SED_A}" {A}; touch sglang/run.log sglang/mine.py', source / "python")


def tools(host: AuditedHost) -> None:
    host.venv("/home/ops/.local/share/uv/tools/sglang")
    host.venv("/home/ops/.local/share/pipx/venvs/sglang")


def system(host: AuditedHost) -> None:
    dist = host.path("/usr/local/lib/python3.11/dist-packages")
    install_fake(dist, "sglang", "1.0", FILES["sglang"])
    host.path("/usr/lib/python3/dist-packages").mkdir(parents=True)
    user = host.path("/home/ops/.local/lib/python3.11/site-packages")
    install_fake(user, "flashinfer-python", "1.0", FILES["flashinfer-python"])
    install_fake(host.path("/srv/target"), "sglang", "1.0", FILES["sglang"])


def carriers(host: AuditedHost) -> None:
    site = host.venv("/opt/carriers")
    (site / "sitecustomize.py").write_text("import sglang.srt\nsglang.srt.x = 1\n")
    (site / "zz.pth").write_text("import os; os.environ['X'] = '1'\n")
    (site / "_virtualenv.pth").write_text("import _virtualenv\n")
    plugin = {"plug-1.0.dist-info/entry_points.txt": b"[sglang.srt.plugins]\nx = plug:x\n"}
    install_fake(site, "plug", "1.0", {"plug.py": b"def x(): ...\n", **plugin})
    host.path("/etc").mkdir()
    host.path("/etc/environment").write_text("SGLANG_MOE_CONFIG_DIR=/cfg\nLANG=C\n")


def copies(host: AuditedHost) -> None:
    site = host.venv("/opt/copies")
    other = host.path("/opt/overlay")
    install_fake(other, "sglang", "1.0", FILES["sglang"])
    (site / "overlay.pth").write_text("/opt/overlay\n")
    shutil.copytree(
        site / "flashinfer_python-1.0.dist-info", site / "flashinfer_python-0.9.dist-info"
    )
    os.utime(site / "flashinfer_python-0.9.dist-info", (1, 1))


def unknowable(host: AuditedHost) -> None:
    site = host.venv("/opt/no-record")
    (site / "sglang-1.0.dist-info" / "RECORD").unlink()
    (site / "flashinfer_python-1.0.dist-info" / "RECORD").write_bytes(b"a,b\n\xff,sha256=,\n")


ALL: tuple[Callable[[AuditedHost], None], ...] = (
    pristine, edited_with_sed, whole_bundle_with_sed, half_a_set, a_sed_that_matched_nothing,
    patched_with_fuzz, edited_by_a_script, staged, verified_elsewhere, drifted, reinstalled,
    linked_by_uv, linked_by_conda, editable, tools, system, carriers, copies, unknowable,
)  # fmt: skip
