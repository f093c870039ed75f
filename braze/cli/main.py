"""``braze demo``, ``braze demo-train``, ``braze serve``, ``braze demo-serve``, ``braze explain script.py``, ``braze explain BZ1012``, ``braze env``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

import braze
from braze.cli import serve
from braze.cli.parser import Parser, at_least
from braze.support.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 1 where the user asked for something that cannot be."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.module is None:
        parser.error("the following arguments are required: command")
    # each command imports what it needs: `braze explain BZ1012` answers without importing torch
    command = importlib.import_module(arguments.module)
    try:
        return command.run(arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="braze", description="A graph compiler for PyTorch.")
    parser.add_argument("--version", action="version", version=f"braze {braze.__version__}")
    parser.set_defaults(module=None)
    commands = parser.add_subparsers(metavar="command")

    demo = commands.add_parser(
        "demo", help="embed sentences with a real model, compiled, and find neighbours"
    )
    demo.add_argument("--file", help="a text file, one sentence a line (default: sentences of old books)")
    demo.add_argument("--query", action="append", default=[], help="a sentence to find neighbours of")
    demo.add_argument(
        "--rounds", type=at_least(1), default=5, help="rounds of timing, eager and compiled in turn"
    )
    demo.set_defaults(module="braze.cli.demo")

    training = commands.add_parser(
        "demo-train", help="train a small GPT and a small vision model, eager and compiled in turn"
    )
    training.add_argument("--steps", type=at_least(1), default=200, help="steps of each model (default: 200)")
    training.add_argument("--png", default="braze-training.png", help="where the loss curves are drawn")
    training.set_defaults(module="braze.cli.demo_train")

    serving = commands.add_parser(
        "serve",
        help="serve a language model by the OpenAI protocol",
        usage="braze serve --model MODEL [--port PORT] [options]",
    )
    serve.add_arguments(serving)
    serving.set_defaults(module="braze.cli.serve")

    asked = commands.add_parser(
        "demo-serve", help="serve a small model in each mode, and ask it by OpenAI's client"
    )
    asked.add_argument("--requests", type=at_least(1), default=8, help="clients at once (default: 8)")
    asked.add_argument(
        "--tokens", type=at_least(1), default=64, help="tokens that each asks for (default: 64)"
    )
    asked.add_argument("--modes", default="", help="names of modes, by commas (default: all)")
    asked.set_defaults(module="braze.cli.demo_serve")

    explain = commands.add_parser(
        "explain", help="run a script and tell what was compiled; or explain a code such as BZ1012"
    )
    explain.add_argument("what", help="a Python script, or a code")
    explain.add_argument("arguments", nargs=argparse.REMAINDER, default=[], help="arguments of the script")
    explain.set_defaults(module="braze.cli.explain")

    env = commands.add_parser("env", help="versions, processor, compiler and cache folder, for a bug report")
    env.set_defaults(module="braze.cli.env")
    return parser
