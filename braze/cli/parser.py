"""Command lines: each command reads its own words, and tells of one that it does not know before it asks for what is missing."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse's, but for what it says of mistakes: its own usage, what is nearest to a misspelt option, and where all are listed.

    A word is never taken for another that it begins.
    """

    def __init__(self, **words: Any) -> None:
        self._options: list[str] = []
        self._wanted: list[argparse.Action] = []
        super().__init__(allow_abbrev=False, **words)

    def add_argument(self, /, *names: Any, **words: Any) -> argparse.Action:
        """As argparse's; what is required is asked for when all else has been read."""
        action = super().add_argument(*names, **words)
        self._options += action.option_strings
        if action.required:
            self._wanted.append(action)
            action.required = False
        return action

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's, which calls it for each command, but that nothing is left over."""
        found, left = super().parse_known_args(sys.argv[1:] if args is None else args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}{self._nearest(left)}")
        missing = [_name(action) for action in self._wanted if getattr(found, action.dest) is None]
        if missing:
            self.error(f"the following arguments are required: {', '.join(missing)}")
        return found, []

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where to look."""
        self.print_usage(sys.stderr)
        self.exit(
            2,
            f"{self.prog}: error: {message}{_nearest_choice(message)}\n  do:  {self.prog} --help lists what it takes\n",
        )

    def _nearest(self, left: Sequence[str]) -> str:
        found = [
            get_close_matches(word.partition("=")[0], self._options, 1) for word in left if word[:1] == "-"
        ]
        near = [names[0] for names in found if names]
        return f" (did you mean {', '.join(near)}?)" if near else ""


def _nearest_choice(message: str) -> str:
    """What is nearest to the word of which argparse says that it is none of the choices."""
    told = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    near = get_close_matches(told[1], re.findall(r"[\w-]+", told[2]), 1) if told else ()
    return f" (did you mean {near[0]}?)" if near else ""


def _name(action: argparse.Action) -> str:
    return "/".join(action.option_strings) or str(action.metavar or action.dest)


def at_least(least: int) -> Callable[[str], int]:
    """The type of whole numbers from ``least`` on."""

    def number(words: str) -> int:
        found = int(words)
        if found < least:
            raise ValueError
        return found

    number.__name__ = f"whole number from {least} on"  # as argparse says it
    return number
