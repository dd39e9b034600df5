"""Takes secrets out of command lines and environments before they are shown or stored. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

REDACTED = "***"

_SECRET_WORDS = frozenset(
    ("APIKEY", "AUTHORIZATION", "CREDENTIAL", "CREDENTIALS", "PASSPHRASE", "PASSWD", "PASSWORD",
     "PASSWORDS", "SECRET", "SECRETS")
)  # fmt: skip
"""Whole words of a name."""
_SECRET_ENDS = re.compile(
    r"""(?:AUTH|KEY|\w*TOKEN|PW|PWD
      | \w*(?:API|ACCESS|AUTH|PRIVATE|SECRET|SIGNING|ENCRYPTION)KEYS?
      | (?!BYPASS|COMPASS)\w*PASS
      | \w*PASSWORD|\w*PASSWD|\w*PASSPHRASE|\w*SECRET)""",
    re.VERBOSE,
)
"""Last words of a name: `HF_TOKEN_PATH` and `--max-total-tokens` hold no secret."""
_SECRET_LISTS = re.compile(r"(?:API|ACCESS|AUTH|SECRET)_(?:KEY|TOKEN)S")
_COUNTS = frozenset(("PER_TOKEN", "FIRST_TOKEN"))
"""Ends of names of options that hold numbers."""
_DIRECTORIES = frozenset(("PWD", "OLDPWD"))
_LONGEST_NAME = 100
"""Characters at the end of a name that are looked at: garbage may call itself a name."""
_WORD_ENDS = re.compile(r"[-_.\s]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

_LOGIN = re.compile(
    r"""(?P<scheme>\b[a-z][a-z0-9+.-]{0,30}://)
        (?: (?:[^/\s"']|["'](?![,:}\]\s]|$)){1,4096}  # what may come before an @
          | [^/\s:@]{0,4096}:(?!\d*(?:[/\s"']|$))[^\s"']{0,4096}  # with a slash; no port
        )@
    """,
    re.VERBOSE | re.IGNORECASE,
)
_TOKENS = re.compile(
    r"(?P<kept>\b(?i:bearer)\s+)[^\s\"']+"
    r"|\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abps]-)[\w-]{8,}"
)
_NAME = re.compile(
    r"""(?<![\w.-])(?P<name>-{0,2}\w[\w.-]*)
        (?P<between>(?:\\*["'])?\]?\s*[:=]\s*|(?<=\w)\s+)
    """,
    re.VERBOSE,
)
_PLAIN = re.compile(r"[\w.-]+")
_SCHEME = re.compile(r"(?:Bearer|Basic|Digest|Token|ApiKey)[ \t]+", re.IGNORECASE)
_WORD = re.compile(r"\S+")
_QUOTE = re.compile(r"""\\*["']""")
_OPTION = re.compile(r"--|-[A-Za-z](?:\s|$)")
"""What follows a secret option and is the next option: a key may begin with a single dash."""
_NOTHING = frozenset(("none", "null", "true", "false"))

_SHORTEST = 8
"""Characters of a value that cannot be taken for an ordinary word."""
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}")


def is_secret_name(name: str) -> bool:
    """Tell whether a variable or option of that name holds a secret, judged word by word.

    `DB_PASS`, `--apiToken` and `WANDB_API_KEY_2` do; a number at the end is no word.
    """
    if name in _DIRECTORIES:
        return False
    end = name[-_LONGEST_NAME:].rstrip("0123456789").rstrip("-_. ")
    words = [word.upper() for word in _WORD_ENDS.split(end)]
    last = "_".join(words[-2:])
    if _SECRET_ENDS.fullmatch(words[-1]):
        return last not in _COUNTS
    return _SECRET_LISTS.fullmatch(last) is not None or not _SECRET_WORDS.isdisjoint(words)


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
    """Replace credentials inside a longer text: URL logins, known tokens, and named values.

    A name counts before `=` or `:`, an option before a space too, however deep it is quoted. When
    in doubt about where a value ends, more is taken out.
    """
    if "@" in text:
        text = _LOGIN.sub(rf"\g<scheme>{REDACTED}@", text)
    text = _TOKENS.sub(lambda match: f"{match['kept'] or ''}{REDACTED}", text)
    return "".join(_named(text))


def _named(text: str) -> Iterator[str]:
    """Pieces of the text, without the values that follow secret names."""
    done = start = 0
    while found := _NAME.search(text, start):
        start = found.end()
        if _holds(found) and (span := _value(text, start, found)):
            yield text[done : span[0]] + REDACTED
            done = start = span[1]
    yield text[done:]


def _holds(found: re.Match[str]) -> bool:
    spaced = found["between"].isspace()
    return is_secret_name(found["name"]) and (not spaced or found["name"].startswith("-"))


def _value(text: str, start: int, found: re.Match[str]) -> tuple[int, int] | None:
    """Where the value begins and ends that follows a secret name; None where it is none."""
    if quote := _QUOTE.match(text, start):
        begin, mark = quote.end(), quote[0]
        ending = re.compile(rf"(?<!\\){re.escape(mark)}")
        closed = ending.search(text, begin)
        end = closed.start() if closed else len(text)
        return (begin, end) if end > begin else None
    if found["between"][-1].isspace() and _OPTION.match(text, start):
        return None
    if scheme := _SCHEME.match(text, start):
        start = scheme.end()
    word = _WORD.match(text, start)
    value = "" if word is None else word[0].rstrip(",;)}]") or word[0]
    # `#new-token: 12` of a server's log is a number of tokens.
    counted = text.startswith("#", found.start() - 1) and value.isdigit()
    if not value or counted or value.lower() in _NOTHING or _PLACEHOLDER.match(text, start):
        return None
    return start, start + len(value)


def redact_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Command line without secrets: `--api-key X`, `--api-key=X`, `HF_TOKEN=X`, URL logins.

    A placeholder in braces, as in a profile's `{api_key}`, is no secret.
    """
    return tuple(_arguments(arguments))


def _arguments(arguments: Sequence[str]) -> Iterator[str]:
    hide_next = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if hide_next and not _OPTION.match(argument):
            yield argument if _PLACEHOLDER.fullmatch(argument) else REDACTED
        elif _given(name, equals) and not _PLACEHOLDER.fullmatch(value):
            yield f"{name}={REDACTED}"
        else:
            yield redact_text(argument)
        hide_next = argument.startswith("-") and not equals and is_secret_name(argument)


def _given(name: str, equals: str) -> bool:
    """Tell whether `name=` gives a secret: of `X-Secret: abc=` all before the `=` is no name."""
    return bool(equals and _PLAIN.fullmatch(name)) and is_secret_name(name.lstrip("-"))


def redact_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment without secrets; names stay."""
    return {
        name: REDACTED if is_secret_name(name) else redact_text(value)
        for name, value in environ.items()
    }
