"""`tuner bundle`: records and the machine code of their kernels in one file."""

from pathlib import Path
from typing import Annotated

import typer

from tuner import arch
from tuner.base.cache import Cache
from tuner.cli.output import DbOption, JsonOption, emit_json, say
from tuner.dispatcher.bundled import packed
from tuner.errors import NoValidConfigError, StoreError, UsageError
from tuner.store import bundle, locations, read, record_lines, signing


def bundle_command(
    out: Annotated[Path, typer.Argument(metavar="OUT.zip", help="the file to write")],
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="GPU", help="only records of this GPU or architecture; repeatable")
    ] = None,
    operator: Annotated[list[str] | None, typer.Option(metavar="NAME", help="only this operator; repeatable")] = None,
    db: DbOption = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="sign the records and the bundle with a private ed25519 key")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write records and the machine code of their kernels to one file, which TUNER_BUNDLE names."""
    if out.suffix != bundle.SUFFIX:
        raise UsageError(f"{out}: a bundle is named …{bundle.SUFFIX}")
    names = {arch.gpu(name).name for name in gpu or ()}
    key = signing.private_key(sign) if sign else None
    source = db or locations.database()
    try:
        stored, _ = read.read(source)
    except StoreError as error:
        raise StoreError(f"cannot read the database {source}: {error}") from error
    wanted = [
        record
        for record in record_lines.current(row.record for row in stored)
        if (not names or record.identity.gpu in names) and (not operator or record.identity.operator in operator)
    ]
    records, cubins, refused = packed(wanted, Cache.of("cubin"))
    for sentence in refused:
        say(f"left out: {sentence}")
    if not records:
        raise NoValidConfigError(f"{source} has no record to bundle: search some with `tuner search`")
    bundle.write(out, records, cubins, key)
    if as_json:
        emit_json({"bundle": str(out), "records": len(records), "cubins": len(cubins), "left_out": list(refused)})
        return
    say(f"bundle written to {out}: {len(records)} records, {len(cubins)} kernels, {out.stat().st_size:,} bytes")
