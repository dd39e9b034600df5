"""No secret survives in a form that is known to carry one, and ordinary options stay readable."""

from __future__ import annotations

import json
import shlex
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sm120patch.redaction import (
    REDACTED,
    is_secret_name,
    redact_arguments,
    redact_environment,
    redact_text,
)

OPTIONS = (
    "--api-key", "--admin-api-key", "--pass", "--apiToken", "--hf-token", "--ssl-keyfile-password",
    "--db_pass", "--secret", "--auth",
)  # fmt: skip
VARIABLES = (
    "DB_PASS", "PGPASS", "WANDB_API_KEY_2", "HF_TOKEN", "OPENAI_API_KEY", "MYSQL_PWD", "apiToken",
    "redis_pass", "AWS_SECRET_ACCESS_KEY", "SGLANG_API_KEYS", "dbPassword2", "x-api-key", "HFToken",
)  # fmt: skip
ORDINARY = (
    "--max-tokens 100", "--tokenizer-path /m/tokenizer", "--disable-tokenizer-batch-decode",
    "--page-size 64", "--max-total-tokens=5", "--ssl-keyfile /k", "--token-path /t", "--passes 2",
    "--bypass 1", "--kt-max-deferred-experts-per-token 3", "--bucket-time-to-first-token 1 2",
    "--disable-token-check yes", "PWD=/srv", "PGPASSFILE=/p", "--model-path org/name",
    "--dist-init-addr tcp://host:5000", "http://host:8000/path@v2", "https://host/p?x=a@b",
    '{"a":"http://host","b":"x@y"}', "#new-token: 12, #token: 512, token usage: 0.05",
    "--token --flag", "--api-key {api_key}", "KeyError: 'model'",
    "HF_HUB_ENABLE_HF_TRANSFER=1", "-e SGLANG_LOG_LEVEL=info", "C++ key, and a token: none",
)  # fmt: skip

# A word in the middle tells the secret from all that stands around it.
parts = st.text(string.ascii_letters + string.digits + "-_./+=@:!~%^*#$&", max_size=6)
secrets = st.tuples(st.sampled_from(["", "-", "@"]), parts, parts).map(
    lambda p: f"{p[0]}KEY{p[1]}SEVEN{p[2]}"
)
plain = st.text(string.ascii_letters + string.digits + "-_+", min_size=1, max_size=12).map(
    lambda text: f"SEVEN{text}"
)
logins = st.text(string.ascii_letters + string.digits + "@:!-_.", max_size=6).map(
    lambda text: f"K{text}SEVEN@PART"
)


def assert_hidden(shown: str) -> None:
    assert "SEVEN" not in shown and "KEY@" not in shown, shown
    assert REDACTED in shown


def every_way(argument: str) -> list[str]:
    """The text by itself, in an option's value and in a variable."""
    return [
        redact_text(argument),
        *redact_arguments([argument]),
        " ".join(redact_arguments(["serve", "--kv", argument, "--port", "1"])),
        " ".join(redact_arguments(["serve", f"--kv={argument}"])),
        redact_environment({"EXTRA_ARGS": argument})["EXTRA_ARGS"],
        " ".join(redact_arguments(["docker", "-e", f"EXTRA_ARGS={argument}"])),
    ]


@given(st.sampled_from(OPTIONS), secrets)
@example("--api-key", "-KEYXSEVEN")
@example("--pass", "KEYXSEVEN")
def test_the_value_of_a_secret_option_never_survives(option: str, secret: str) -> None:
    for words in ([option, secret], [f"{option}={secret}"]):
        shown = redact_arguments(["serve", *words, "--port", "1"])
        assert_hidden(" ".join(shown))
        assert shown[-2:] == ("--port", "1")
        for text in every_way(" ".join(words)):
            assert_hidden(text)


@given(st.sampled_from(VARIABLES), secrets)
@example("AWS_SECRET_ACCESS_KEY", "KEYSEVEN=")
def test_the_value_of_a_secret_name_never_survives(name: str, secret: str) -> None:
    assert redact_environment({name: secret}) == {name: REDACTED}
    quoted = [f'{name}="{secret} SEVEN"', f"{name} = '{secret} SEVEN'"]
    for text in (f"{name}={secret}", f"{name}: {secret}", f"a=1 {name}={secret}", *quoted):
        for shown in every_way(text):
            assert_hidden(shown)


@given(st.sampled_from(VARIABLES), secrets, st.integers(0, 2))
def test_secrets_in_json_never_survive_however_deep_it_is_quoted(
    name: str, secret: str, depth: int
) -> None:
    text = json.dumps({"port": 1, name: f'{secret} "SEVEN"', "host": "here"})
    for _ in range(depth):
        text = json.dumps({"inner": text})
    for shown in every_way(text):
        assert_hidden(shown)
        assert "port" in shown
    for shown in every_way(shlex.join(["--json-config", text])):
        assert "SEVEN" not in shown


@given(logins, st.sampled_from(["postgres", "redis", "http", "mongodb+srv"]))
@example("PARTONE@SEVEN", "postgres")
def test_no_part_of_the_login_of_a_url_survives(password: str, scheme: str) -> None:
    for shown in every_way(f"{scheme}://u:{password}@host:5432/db"):
        assert_hidden(shown)
        assert shown.count(f"{scheme}://{REDACTED}@host:5432/db") == 1
    assert "SEVEN" not in redact_text(f"{scheme}://u:pa/SEVEN@host/db")


@given(plain)
def test_bearer_tokens_never_survive(secret: str) -> None:
    headers = (f"Authorization: Bearer {secret}", f"authorization=Basic {secret}",
               json.dumps({"Authorization": f"Bearer {secret}"}))  # fmt: skip
    for header in headers:
        for shown in every_way(header):
            assert_hidden(shown)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_options_and_texts_stay_readable(text: str) -> None:
    assert redact_text(text) == text
    assert " ".join(redact_arguments(text.split(" "))) == text
    assert redact_environment({"EXTRA_ARGS": text}) == {"EXTRA_ARGS": text}


@pytest.mark.parametrize(
    "text", ["api_key=None, port=3", "ServerArgs(api_key=None)", '"token": ""']
)
def test_that_there_is_no_secret_stays_readable(text: str) -> None:
    assert redact_text(text) == text


@given(st.text(max_size=80))
def test_any_text_is_redacted_once_and_for_all(text: str) -> None:
    once = redact_text(text)
    assert redact_text(once) == once
    assert isinstance(is_secret_name(text), bool)
