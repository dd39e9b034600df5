"""Render the page: one self-contained file, no script, every word from outside escaped.

Reads its own templates only.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from sm120patch.plaintext import clean
from sm120patch.report.view import Subject, build

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def render(subject: Subject) -> str:
    """HTML of the page about one event. Text from outside never becomes markup.

    Control characters are shown, not passed on. The page forbids scripts and loads from anywhere
    by its own policy, so that even a mistake here could not run anything.
    """
    return template("page.html.j2").render(page=build(subject))


def template(name: str) -> Template:
    """Template of a page: every word from outside that it prints is escaped and cleaned."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("sm120patch.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )


def _shown(value: object) -> object:
    """Clean text from outside; markup made by the templates themselves stays as it is."""
    return clean(value) if type(value) is str else value
