"""The commands by name. A command's modules are imported only when it is used, so that help is fast."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from tuner.cli.output import ending, examples, finished, guarded


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the function `body` of its module in `tuner.cli.commands`, and a one-line description.

    If `per_operator`, it has a subcommand for each operator, with its problem's fields as options.
    """

    name: str
    body: str
    help: str
    examples: tuple[str, ...]  # with `{operator}` in place of an operator's name
    per_operator: bool = False
    module: str = ""  # if the command's name is a Python keyword
    alone: str = ""  # function of the module that runs if no operator is named
    across: tuple[str, str] = ("", "")  # an option in place of an operator, and the module whose `command()` handles it

    def load(self) -> Any:
        """Return the command itself, ready to run."""
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        module = import_module(f"tuner.cli.commands.{self.module or self.name}")
        body = getattr(module, self.body)
        if not self.per_operator:
            app.command(self.name, help=self.help, epilog=examples(self.examples))(guarded(body))
            command = get_command(app)
            finished(command)
            return command
        from tuner.cli.options import group_of  # loads every operator

        alone = getattr(module, self.alone) if self.alone else None
        option, across_module = self.across
        across = (option, import_module(f"tuner.cli.commands.{across_module}").command()) if option else None
        return group_of(self.name, body, self.examples, help=self.help, alone=alone, across=across)


COMMANDS = (  # in the order of use
    Command(
        "search",
        "search",
        "Find the best config of a problem. Resumes by default.",
        (
            "tuner search {operator} --gpu sm_90a --effort quick",
            "tuner search {operator} --gpu H200 --budget 32 --report report.html",
            "tuner search --misses misses.jsonl",
        ),
        True,
        across=("--misses", "search_misses"),
    ),
    Command(
        "show",
        "show",
        "List the records: the best config known for each problem and GPU.",
        ("tuner show", "tuner show --out records.jsonl"),
    ),
    Command(
        "explain",
        "explain",
        "Show which record is used for a problem, or which constraint rejects a config.",
        ("tuner explain {operator} --gpu H100",),
        True,
    ),
    Command(
        "report",
        "report",
        "Write the report of what is stored.",
        ("tuner report {operator} --gpu sm_90a", "tuner report {operator} --gpu sm_90a --format md"),
        True,
    ),
    Command(
        "bench",
        "bench_command",
        "Race our best against peers, or predict for a GPU.",
        ("tuner bench {operator} --gpu H200",),
        True,
    ),
    Command("doctor", "doctor", "Say what works here and what to install.", ("tuner doctor", "tuner doctor --json")),
    Command(
        "export",
        "export_command",
        "Write the attempts at a problem as T4, or as an Optuna study.",
        (
            "tuner export {operator} --gpu sm_90a --out attempts.json",
            "tuner export {operator} --gpu sm_90a --format optuna sqlite:///study.db",
        ),
        True,
    ),
    Command("gpus", "list_gpus", "List the architectures and GPU models.", ("tuner gpus",)),
    Command(
        "import",
        "import_kernel",
        "Make an operator of a Kernel Tuner script or T1 file, or import an Optuna study.",
        (
            "tuner import convolution.py",
            "tuner import gemm.json --name gemm",
            "tuner import sqlite:///study.db --operator flash_attention --implementation wgmma --gpu H100",
        ),
        module="import_kernel",
    ),
    Command(
        "inspect",
        "inspect_command",
        "Compile a config and print its resources and predicted cost.",
        ("tuner inspect {operator} --gpu H100", "tuner inspect {operator} --gpu H100 --waits"),
        True,
    ),
    Command(
        "bundle",
        "bundle_command",
        "Write records and their machine code to one file.",
        ("tuner bundle records.zip --gpu H200", "tuner bundle records.zip --db team.db --sign key"),
    ),
    Command(
        "merge",
        "merge_command",
        "Add the contents of several databases to one.",
        ("tuner merge team.db mine.db yours.db", "tuner merge team.db postgresql://HOST/NAME records.jsonl"),
    ),
    Command("new", "new", "Write a small operator of your own to start from.", ("tuner new row_sum",)),
    Command(
        "prove",
        "prove_command",
        "Judge every implementation on the GPU of this machine.",
        ("tuner prove", "tuner prove {operator} --gpu here"),
        True,
        alone="prove_all",
    ),
    Command(
        "operators",
        "list_operators",
        "List the operators, or say all about one.",
        ("tuner operators", "tuner operators kda --json"),
    ),
    Command(
        "render",
        "render_command",
        "Print the CUDA source of a config, or write it for a C++ program.",
        ("tuner render {operator} --gpu sm_90a", "tuner render {operator} --gpu sm_90a --standalone DIR"),
        True,
    ),
    Command(
        "replay",
        "replay_command",
        "Say how near a sampler comes to the best of a recording.",
        ("tuner replay attempts.json --budget 4 --seeds 3",),
    ),
    Command(
        "warmup",
        "warmup_command",
        "Compile ahead what calls on a GPU need.",
        ("tuner warmup {operator} --gpu H100",),
        True,
    ),
    Command(
        "verify",
        "verify_command",
        "Check a config on the CPU emulator.",
        ("tuner verify {operator} --gpu sm_90a", "tuner verify {operator} --ptx --thorough"),
        True,
    ),
)


class Root(TyperGroup):
    """The group of all commands. It lists names with a line of help, and loads only the command that runs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for command in COMMANDS:
            if args and command.name == args[0]:
                self.add_command(command.load(), command.name)
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with ending():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with ending():
            return super().invoke(ctx)


def add_all(app: typer.Typer) -> None:
    """Add the name and the help of every command to `app`, whose class is `Root`."""
    for command in COMMANDS:
        app.command(command.name, help=command.help)(_unloaded)


def _unloaded() -> None:
    """Do nothing: a placeholder for a command until it is used."""
