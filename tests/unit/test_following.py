"""A command that is told to be run next must ask about the same environment."""

from __future__ import annotations

import click

from sm120patch.cli import following
from sm120patch.cli.group import cli

GIVEN = following.given(
    ["apply", "a", "--env", "/opt/my env", "--profile=p.toml", "--extra-catalogue", "x",
     "--extra-catalogue", "y", "--no-verify", "--output", "json"],
)  # fmt: skip


def test_every_command_is_known_with_the_options_that_it_takes() -> None:
    context = click.Context(cli)
    found = {}
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        found[name] = set(following.OPTIONS) & known
    assert found == {name: set(options) for name, options in following.TAKEN.items()}


def test_the_options_are_read_in_both_spellings_up_to_the_end_of_options() -> None:
    assert GIVEN == (
        ("--env", "/opt/my env"),
        ("--profile", "p.toml"),
        ("--extra-catalogue", "x"),
        ("--extra-catalogue", "y"),
    )
    assert following.given(["status", "--", "--env", "x"]) == ()
    assert following.given(["status", "--env"]) == ()


def test_a_command_gets_the_options_that_it_takes_and_lacks() -> None:
    both = "--extra-catalogue x --extra-catalogue y"
    verify = following.command("sm120patch verify a", GIVEN)
    assert verify == (
        "sm120patch verify a --env '/opt/my env' --profile p.toml --extra-catalogue x"
        " --extra-catalogue y"
    )
    assert following.command("sm120patch list", GIVEN) == f"sm120patch list {both}"
    named = "sm120patch recover --python /usr/bin/python3"
    assert following.command(named, GIVEN) == f"{named} {both}"
    for alone in ("sm120patch new a --target sglang", "sm120patch verify --help", "sm120patch"):
        assert following.command(alone, GIVEN) == alone


def test_commands_in_prose_are_completed_and_nothing_else_is() -> None:
    text = "first `sm120patch recover`, then sm120patch status; `pip install sm120patch`"
    assert following.prose(text, (("--env", "/opt/e"),)) == (
        "first `sm120patch recover --env /opt/e`, then sm120patch status; `pip install sm120patch`"
    )
    assert following.prose(text, ()) == text
