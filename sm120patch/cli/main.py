"""Entry point: the one place that turns errors into exit codes."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from sm120patch import __version__
from sm120patch.cli import following, quick
from sm120patch.cli.output import Output, flushed, hold_closed_streams, unwritten
from sm120patch.errors import ExitCode, HostError, InterruptedByUser, Sm120PatchError, UsageError
from sm120patch.signals import raise_on_termination

if TYPE_CHECKING:
    import click

COMMANDS = {
    "diagnosing": ("doctor",),
    "adopting": ("adopt",),
    "auditing": ("audit",),
    "differing": ("diff",),
    "looking": ("history", "list", "plan", "show", "status"),
    "changing": ("apply", "revert", "verify"),
    "recovering": ("recover",),
    "initialising": ("init",),
    "releases": ("matrix",),
    "authoring": ("lint", "new", "tune"),
    "reporting": ("report",),
    "experiments": ("bench",),
    "caching": ("caches",),
    "signing": ("sign",),
    "fleet": ("fleet-path",),
    "fleetreport": ("fleet-report",),
}
"""Module of `sm120patch.cli` -> the commands in its `COMMANDS`."""


NO_BUG = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EFBIG,
    errno.EMFILE, errno.ENFILE, errno.ENOMEM,
}  # fmt: skip
"""What no command could foresee, nor do anything about: disks, quotas, limits."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    output = Output(given=following.given(words))
    try:
        code = quick.run(words, output)
        if code is None:
            code = _parsed(words, output)
        if not flushed():
            raise unwritten("it took only a part")
    except KeyboardInterrupt:
        return _interrupted(output)
    except Sm120PatchError as error:
        output.error(error)
        return int(error.exit_code)
    except OSError as error:
        return _refused_by_the_system(output, error)
    except Exception as error:
        return _bug(output, error)
    return int(code)


def _refused_by_the_system(output: Output, error: OSError) -> int:
    if _of_click(error):
        output.error(unwritten(error.strerror))
    elif error.errno in NO_BUG:
        output.error(
            HostError(
                f"the system refuses: {error}",
                code="system",
                hint="mend the cause and repeat; `sm120patch status` shows where the environment"
                " stands",
                details={"errno": error.errno},
            )
        )
    else:
        return _bug(output, error)
    return int(ExitCode.HOST)


def _of_click(error: OSError) -> bool:
    """True for what click could not print: its help and version go past `Output`."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals.get("__name__") == "click.utils"


def _parsed(words: list[str], output: Output) -> int:
    """Let click find out what is asked for, and do it."""
    import click

    from sm120patch.cli.group import cli

    try:
        code = cli.main(words, prog_name="sm120patch", standalone_mode=False, obj=output)
    except click.Abort:  # click makes it of ^C
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        return _usage(output, error, words)
    return code if isinstance(code, int) else int(ExitCode.OK)


def _interrupted(output: Output) -> int:
    output.error(
        InterruptedByUser(
            "interrupted", hint="`sm120patch status` shows where the environment stands"
        )
    )
    return int(ExitCode.INTERRUPTED)


def _usage(output: Output, error: click.ClickException, words: Sequence[str]) -> int:
    """Say what is wrong with the command line, in the form that it asks for."""
    import click

    # Where the options cannot be parsed, nobody has read `--output` yet.
    if output.as_json or "--output=json" in words or ("--output", "json") in pairwise(words):
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = context.command_path if context else "sm120patch"
        output.as_json = True
        output.command = path.removeprefix("sm120patch").strip()
        output.error(UsageError(error.format_message(), hint=f"see `{path} --help`"))
    else:
        error.show()
    return int(ExitCode.USAGE)


def _bug(output: Output, error: Exception) -> int:
    """Write what is needed to mend the bug to a file and name it in one line."""
    import traceback

    from sm120patch.redaction import redact_arguments
    from sm120patch.userdirs import user_directory

    text = "".join(
        [
            f"sm120patch {__version__}\npython {sys.version}\nplatform {sys.platform}\n",
            f"arguments {list(redact_arguments(sys.argv[1:]))}\n\n",
            *traceback.format_exception(error),
        ]
    )
    log = user_directory("XDG_STATE_HOME", os.environ) / f"crash-{os.getpid()}.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(text, encoding="utf-8", errors="backslashreplace")
        where = str(log)
    except OSError:
        output.talk(text)
        where = "the text above"
    output.error(
        Sm120PatchError(
            f"unexpected {type(error).__name__}: {error}",
            code="bug",
            hint=f"please report it with {where}; `sm120patch status` shows the environment",
        )
    )
    return int(ExitCode.BUG)


def main() -> None:
    """Console script."""
    hold_closed_streams()
    raise_on_termination()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an ASCII terminal is no bug
    code = run()
    gc.freeze()  # or the end of the process would begin with looking at every object
    sys.exit(code)
