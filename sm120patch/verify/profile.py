"""`sm120patch.toml`: how the server is started and what is measured. Reads disk only."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from sm120patch.errors import UsageError
from sm120patch.model import EvidenceKind, VerificationPolicy, digest_of
from sm120patch.tables import ANY, Table
from sm120patch.tomltext import decode
from sm120patch.verify.driver import Driver, read_driver

PLACEHOLDERS = ("{python}", "{prefix}", "{port}", "{tool_python}", "{api_key}")
"""Replaced anywhere in an element: the target's interpreter and prefix, the port of `url`, the
interpreter that runs sm120patch, and the value of the variable named by `api_key_env`."""
EXPANSIONS = ("{set_args}", "{set_env}")
"""Whole elements of a command that expand to none or several: the options of the patch sets,
and their variables as KEY=VALUE. Empty in the baseline arm."""

_MAX_BYTES = 1 << 20
_MAX_TOKENS = 50_000_000  # prompts x output_len of one repeat: bounds the memory of the samples


@dataclass(frozen=True)
class Workload:
    """One load: `prompts` requests, at most `concurrency` at a time."""

    name: str
    input_len: int
    output_len: int
    concurrency: int
    prompts: int
    repeats: int | None = None
    """Measured repeats per server start; None takes the policy of the patch set."""
    warmup: int | None = None
    """Unmeasured requests at the same concurrency; None is a whole repeat (`prompts`): the first
    one after a start was seen to reach half the speed of those that follow."""

    @property
    def warmup_requests(self) -> int:
        """Unmeasured requests before the first repeat."""
        return self.prompts if self.warmup is None else self.warmup


UNSET_MODEL = "/models/your-model"
"""What the profile that `init` writes says where it could not find out which model is served."""
DEFAULT_WORKLOADS = (
    Workload("single", 256, 128, concurrency=1, prompts=4),
    Workload("c64", 256, 128, concurrency=64, prompts=128),
    Workload("c512", 256, 128, concurrency=512, prompts=512),
    Workload("long", 8192, 128, concurrency=4, prompts=8),
)
"""Used when a profile names no workload."""


@dataclass(frozen=True)
class ServerSettings:
    """How the server comes to life and where it answers."""

    mode: str
    """`start` (we start and stop it) or `external` (a command restarts it, we stop nothing)."""
    kind: EvidenceKind
    """What the file claims; it can lower the worth of the evidence, never raise it."""
    command: tuple[str, ...]
    """Start command, or the restart command of an external server, placeholders unresolved."""
    env: Mapping[str, str]
    url: str
    """Base URL without a trailing slash."""
    ready: str
    ready_timeout: float
    stop_timeout: float
    cwd: str | None
    log: str | None
    user: str | None
    home: str | None
    workspace: str | None
    api_key_env: str | None

    @property
    def host(self) -> str:
        """Host of the base URL."""
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        """Port of the base URL."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the server, with those that its home and workspace stand for."""
        implied = {"HOME": self.home, "FLASHINFER_WORKSPACE_BASE": self.workspace}
        named = {name: value for name, value in implied.items() if value is not None}
        return {**named, **self.env}

    @property
    def external(self) -> bool:
        """True when somebody else runs the server."""
        return self.mode == "external"


@dataclass(frozen=True)
class Profile:
    """A validated profile. `python` and `prefix` are the environment it is used for."""

    origin: str
    python: str
    prefix: str
    server: ServerSettings
    workloads: tuple[Workload, ...]
    blocks: int | None
    """Most server starts an arm; None makes it five times what the patch set asks for."""
    margin: float | None
    max_time: float | None
    """Seconds for the whole verification."""
    seed: int
    endpoint: str
    """`generate` (SGLang) or `openai` (`/v1/completions`)."""
    model: str | None
    request_timeout: float
    null_run: bool | None = None
    """Start the baseline against itself first; None: where the noise is not on record."""
    hang_timeout: float = 300.0
    """Seconds without a token from any stream after which a measured server counts as hung."""
    logprobs: bool = True
    """Ask the server for log-probabilities with the questions about correctness."""
    driver: Driver = field(default_factory=Driver)
    """The client that sends the measured requests."""
    digest: str = ""
    """Digest of what shapes the evidence: server, workloads, seed; not of paths and timeouts."""

    def too_long(self, workload: Workload, info: Mapping[str, object]) -> str | None:
        """Why the server says it cannot take a workload that nobody asked for; None if it can.

        Workloads of the profile are never left out: there the server's refusal is the answer.
        """
        if self.workloads != DEFAULT_WORKLOADS:
            return None
        need = workload.input_len + workload.output_len
        for name in ("context_length", "max_total_num_tokens"):
            limit = info.get(name)
            if isinstance(limit, int) and 0 < limit < need:
                return f"{need} tokens a request, and the server has {name} = {limit}"
        return None

    def noise_key(self, workload: Workload) -> str:
        """Digest of what the noise of a workload belongs to, the host apart."""
        server = self.server
        return digest_of([server.mode, list(server.command), dict(server.env), self.endpoint,
                          self.model, workload.input_len, workload.output_len,
                          workload.concurrency, workload.prompts,
                          *self.driver.shaping])  # fmt: skip

    def with_policy(self, policy: VerificationPolicy) -> tuple[int, float, tuple[Workload, ...]]:
        """Blocks, margin and workloads with the gaps filled from the policy of the sets."""
        workloads = tuple(replace(w, repeats=w.repeats or policy.repeats) for w in self.workloads)
        margin = policy.margin if self.margin is None else self.margin
        return self.blocks or policy.blocks, margin, workloads


def load(path: Path, *, python: str, prefix: str) -> Profile:
    """Read and check a profile. Raises UsageError that lists every fault with its key path."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"more than {_MAX_BYTES} bytes")
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the verification profile {path}: {error}",
            hint="`sm120patch init` writes one from a running server",
            code="profile",
        ) from error
    return parse(text, origin=str(path), python=python, prefix=prefix)


def parse(text: str, *, origin: str, python: str, prefix: str) -> Profile:
    """Check the text of a profile; see `load`."""
    faults: list[str] = []
    try:
        document = decode(text)
    except ValueError as error:
        raise _broken(origin, [f"not TOML: {error}"]) from None
    top = Table(document, "", faults)
    server = _server(top.table("server", required=True), present="server" in top)
    workloads = _workloads(top.table("workload"))
    verify = top.table("verify")
    profile = Profile(
        origin=origin,
        python=python,
        prefix=prefix,
        server=server,
        workloads=workloads or DEFAULT_WORKLOADS,
        blocks=verify.optional_integer("blocks", 1, 50),
        margin=verify.optional_number("margin", 0.0, 0.5),
        max_time=verify.optional_number("max_time", 1, 7 * 86400),
        seed=verify.integer("seed", 0, 2**31 - 1, default=1),
        endpoint=verify.choice("endpoint", ("generate", "openai"), default="generate"),
        model=verify.optional_text("model"),
        request_timeout=verify.number("request_timeout", 1, 86400, default=1800),
        null_run=verify.optional_flag("null_run"),
        hang_timeout=verify.number("hang_timeout", 1, 86400, default=300),
        logprobs=verify.flag("logprobs", default=True),
        driver=read_driver(top.table("driver")),
    )
    verify.finish()
    top.finish()
    if faults:
        raise _broken(origin, faults)
    return _sealed(profile)


def _server(table: Table, *, present: bool) -> ServerSettings:
    mode = table.choice("mode", ("start", "external"), default="start")
    wanted, other = ("restart_command", "command") if mode == "external" else (
        "command", "restart_command")  # fmt: skip
    command = table.texts(wanted, pattern=ANY, distinct=False, required=present)
    if other in table:
        table.fault(other, f"belongs to mode {'start' if mode == 'external' else 'external'}")
        table.texts(other, pattern=ANY, distinct=False)
    _check_command(table, wanted, command)
    env = table.mapping("env", str, pattern=r"[^=\0]+")
    settings = ServerSettings(
        mode=mode,
        kind=EvidenceKind(table.choice("kind", [k.value for k in EvidenceKind], default="real")),
        command=command,
        env=env,
        url=_url(table),
        ready=table.text("ready", default="/health"),
        ready_timeout=table.number("ready_timeout", 0.1, 86400, default=900),
        stop_timeout=table.number("stop_timeout", 0.1, 3600, default=60),
        cwd=table.optional_text("cwd"),
        log=table.optional_text("log"),
        user=table.optional_text("user"),
        home=table.optional_text("home"),
        workspace=table.optional_text("workspace"),
        api_key_env=table.optional_text("api_key_env"),
    )
    if not settings.ready.startswith("/"):
        table.fault("ready", "expected a path that begins with /")
    if "{api_key}" in " ".join([*command, *env.values()]) and not settings.api_key_env:
        table.fault("api_key_env", "is missing, but {api_key} is used")
    table.finish()
    return settings


def _url(table: Table) -> str:
    default = "http://127.0.0.1:30000"
    url = table.text("url", default=default)
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        table.fault("url", f"expected http://HOST:PORT, found {url!r}")
        return default
    return url.rstrip("/")


def _check_command(table: Table, key: str, command: tuple[str, ...]) -> None:
    for index, element in enumerate(command):
        at = f"{key}[{index}]"
        for expansion in EXPANSIONS:
            if expansion in element and element != expansion:
                table.fault(at, f"{expansion} must be an element of its own")
            if element == expansion and element in command[:index]:
                table.fault(at, f"{expansion} is given twice")
        if re.fullmatch(r"\{[a-z_]+\}", element) and element not in PLACEHOLDERS + EXPANSIONS:
            known = ", ".join(PLACEHOLDERS + EXPANSIONS)
            table.fault(at, f"unknown placeholder {element}; known are {known}")
    if command and (not command[0] or command[0] in EXPANSIONS):
        table.fault(f"{key}[0]", "expected the program to run")


def _workloads(table: Table) -> tuple[Workload, ...]:
    found = []
    for name in table.keys:
        entry = table.table(name)
        concurrency = entry.integer("concurrency", 1, 8192, default=1)
        workload = Workload(
            name=name,
            input_len=entry.integer("input_len", 1, 1_000_000, default=256),
            output_len=entry.integer("output_len", 2, 1_000_000, default=128),
            concurrency=concurrency,
            prompts=entry.integer("prompts", 1, 1_000_000, default=max(4, concurrency)),
            repeats=entry.optional_integer("repeats", 1, 1000),
            warmup=entry.optional_integer("warmup", 0, 1_000_000),
        )
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name):
            table.fault(name, "expected a name of letters, digits, - and _ (at most 40)")
        if workload.prompts < concurrency:
            entry.fault("prompts", f"fewer than concurrency ({concurrency}): it is never reached")
        if workload.prompts * workload.output_len > _MAX_TOKENS:
            entry.fault("prompts", f"prompts x output_len exceeds {_MAX_TOKENS}")
        entry.finish()
        found.append(workload)
    return tuple(found)


def _sealed(profile: Profile) -> Profile:
    server = profile.server
    shaping = {
        "server": [server.mode, server.kind.value, list(server.command), dict(server.env),
                   server.url, server.user],
        "workloads": [[w.name, w.input_len, w.output_len, w.concurrency, w.prompts, w.repeats,
                       w.warmup] for w in profile.workloads],
        "verify": [profile.blocks, profile.margin, profile.seed, profile.endpoint, profile.model],
    }  # fmt: skip
    if not profile.driver.native:
        shaping["driver"] = profile.driver.shaping
    return replace(profile, digest=digest_of(shaping))


def _broken(origin: str, faults: list[str]) -> UsageError:
    listed = "".join(f"{os.linesep}  {fault}" for fault in faults)
    return UsageError(
        f"the verification profile {origin} is not usable:{listed}",
        hint="correct the keys named above; `sm120patch init --profile example.toml` writes a"
        " commented one",
        code="profile",
        details={"faults": faults, "profile": origin},
    )
