"""Takes secrets out of command lines and environments before they are shown or stored. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

REDACTED = "***"

_SECRET_WORDS = frozenset(
    ("APIKEY", "AUTHORIZATION", "CREDENTIAL", "CREDENTIALS", "PASSPHRASE", "PASSWD", "PASSWORD",
     "SECRET", "SECRETS")
)  # fmt: skip
"""Whole words of a name."""
_SECRET_ENDS = frozenset(("AUTH", "KEY", "TOKEN"))
"""Last words of a name: `HF_TOKEN_PATH` and `--max-total-tokens` hold no secret."""

_SECRET_VALUES = re.compile(
    r"""(?P<keep>\b[a-z][a-z0-9+.-]*://)[^/\s@]+@            # user and password of a URL
      | (?P<bearer>\b[Bb]earer\s+)\S+
      | (?P<field>["']?\b[\w-]*(?:api[_-]?key|(?:auth|access)[_-]?token|secret|password)["']?
          \s*[:=]\s*["']?)[^"',\s}]+
      | \b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abps]-)[\w-]{8,}
    """,
    re.VERBOSE,
)

_SHORTEST = 8
"""Characters of a value that cannot be taken for an ordinary word."""
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")


def is_secret_name(name: str) -> bool:
    """Tell whether a variable or option of that name holds a secret, judged word by word."""
    words = re.split(r"[-_.\s]+", name.upper())
    return words[-1] in _SECRET_ENDS or not _SECRET_WORDS.isdisjoint(words)


def is_secret(name: str, value: str) -> bool:
    """Tell whether an option or variable carries a secret, by its name or by the look of it."""
    return is_secret_name(name) or redact_text(value) != value


def redact_output(text: str, environ: Mapping[str, str]) -> str:
    """Replace credentials in what a program wrote that was started with these variables.

    The values of variables whose names say that they are secret go wherever they stand; short ones
    stay, since they may be words of any sentence.
    """
    secrets = {value for name, value in environ.items() if is_secret_name(name)}
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, REDACTED)
    return redact_text(text)


def redact_text(text: str) -> str:
    """Replace credentials inside a longer text."""

    def replacement(match: re.Match[str]) -> str:
        kept = match["keep"] or match["bearer"] or match["field"] or ""
        return f"{kept}{REDACTED}{'@' if match['keep'] else ''}"

    return _SECRET_VALUES.sub(replacement, text)


def redact_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Command line without secrets: `--api-key X`, `--api-key=X`, `HF_TOKEN=X`, URL logins.

    A placeholder in braces, as in a profile's `{api_key}`, is no secret.
    """
    return tuple(_arguments(arguments))


def _arguments(arguments: Sequence[str]) -> Iterator[str]:
    hide_next = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            yield argument if _PLACEHOLDER.fullmatch(argument) else REDACTED
        elif equals and is_secret_name(name.lstrip("-")) and not _PLACEHOLDER.fullmatch(value):
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
