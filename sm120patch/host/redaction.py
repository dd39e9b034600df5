"""Takes secrets out of command lines and environments before they are shown or stored. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

REDACTED = "***"

_SECRET_WORDS = frozenset(
    ("APIKEY", "AUTH", "AUTHORIZATION", "CREDENTIAL", "CREDENTIALS", "KEY", "PASSPHRASE",
     "PASSWD", "PASSWORD", "SECRET", "SECRETS", "TOKEN")
)  # fmt: skip
"""Whole words of a name: `--tokenizer-path` and `--max-total-tokens` hold no secret."""

_SECRET_VALUES = re.compile(
    r"""(?P<keep>\b[a-z][a-z0-9+.-]*://)[^/\s@]+@            # user and password of a URL
      | (?P<bearer>\b[Bb]earer\s+)\S+
      | (?P<field>["']?\b[\w-]*(?:api[_-]?key|secret|password)["']?\s*[:=]\s*["']?)[^"',\s}]+
      | \b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abps]-)[\w-]{8,}
    """,
    re.VERBOSE,
)


def is_secret_name(name: str) -> bool:
    """Tell whether a variable or option of that name holds a secret, judged word by word."""
    return not _SECRET_WORDS.isdisjoint(re.split(r"[-_.\s]+", name.upper()))


def redact_text(text: str) -> str:
    """Replace credentials inside a longer text."""

    def replacement(match: re.Match[str]) -> str:
        kept = match["keep"] or match["bearer"] or match["field"] or ""
        return f"{kept}{REDACTED}{'@' if match['keep'] else ''}"

    return _SECRET_VALUES.sub(replacement, text)


def redact_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Command line without secrets: `--api-key X`, `--api-key=X`, `HF_TOKEN=X`, URL logins."""
    return tuple(_arguments(arguments))


def _arguments(arguments: Sequence[str]) -> Iterator[str]:
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            yield REDACTED
        elif equals and is_secret_name(name.lstrip("-")):
            yield f"{name}={REDACTED}"
        else:
            yield redact_text(argument)
        hide_next = argument.startswith("-") and not equals and is_secret_name(argument)


def redact_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment without secrets; names stay."""
    return {
        name: REDACTED if is_secret_name(name) else redact_text(value)
        for name, value in environ.items()
    }
