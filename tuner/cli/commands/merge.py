"""`tuner merge`: combine the results of several people in one database."""

from typing import Annotated

import typer

from tuner.cli.output import JsonOption, emit_json, say, table
from tuner.store.sql import locate
from tuner.store.sql.merge import MERGED, merge


def merge_command(
    into: Annotated[str, typer.Argument(metavar="INTO", help="database or server; a file that is missing is created")],
    sources: Annotated[
        list[str], typer.Argument(metavar="FROM...", help="databases, servers and .jsonl files, which stay as they are")
    ],
    as_json: JsonOption = False,
) -> None:
    """Add the contents of several databases to one. Merging the same source again adds nothing."""
    names = [merged.table.name for merged in MERGED]
    merged = [(locate(source).label, merge(into, source)) for source in sources]
    label = locate(into).label
    if as_json:
        listed = [
            {"from": source, "added": {name: of.added.get(name, 0) for name in names}, "replaced": of.replaced}
            for source, of in merged
        ]
        emit_json({"into": label, "merged": listed})
        return
    rows = [(source, *(f"{of.added.get(name, 0):,}" for name in names)) for source, of in merged]
    table(f"added to {label}", ("from", *names), rows, right=names)
    if replaced := sum(of.replaced for _, of in merged):
        say(f"{replaced} problems are served by another record than before: of equal evidence the last merged one")
