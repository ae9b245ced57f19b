"""`tuner explain`: the record that serves a problem, and the reason; or the constraint that refuses a config."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import typer

from tuner.base.fields import formatted
from tuner.cli.config_selection import over, serving, snapshot
from tuner.cli.output import ConfigOption, DbOption, GpuOption, ImplementationOption, JsonOption, emit_json, table
from tuner.dispatcher import config_choice
from tuner.dispatcher.config_choice import Choice
from tuner.evaluate.predict.predicted_time import UNJUDGED, recorded_time
from tuner.results.codec import to_data
from tuner.spec.operator import Operator
from tuner.spec.problem import to_fields


def explain(
    operator: Operator[Any],
    problems: Sequence[Any],
    *,
    gpu: GpuOption,
    implementation: ImplementationOption = None,
    config: ConfigOption = None,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which record is used for a problem and why; with --config, show which constraint rejects that config."""
    records = snapshot(db)
    served = serving(operator, problems, gpu, records)
    chosen = over(served, implementation, config)
    if config:
        _explain_config(chosen, as_json)
        return
    explanation = config_choice.explain(served, [served.gpu], records)
    record = explanation.record
    time = recorded_time(record) if record else None
    if as_json:
        data = to_data(record) if record else None
        emit_json({**asdict(explanation), "record": data, "predicted_time": asdict(time) if time else None})
        return
    typer.echo(str(explanation))
    if record and record.prediction:
        typer.echo(f"  predicted time on {record.identity.gpu}: {time or UNJUDGED}")


def _explain_config(chosen: Choice, as_json: bool) -> None:
    instance = chosen.instance
    space = instance.implementation.space(instance.problem, chosen.gpu.arch)
    reasons = space.refusals(instance.config)
    if as_json:
        emit_json({"config": to_fields(instance.config), "valid": not reasons, "refused_by": list(reasons)})
        return
    typer.echo(f"{instance.implementation.name} {formatted(to_fields(instance.config))}")
    typer.echo("  is in the space" if not reasons else "\n".join(f"  refused: {reason}" for reason in reasons))
    removed = [(reason, f"{count:,}") for reason, count in space.counts()]
    about = "" if space.enumerated else "about "
    title = f"the space: {about}{len(space):,} of {space.raw_size:,} combinations are valid"
    table(title, ("constraint", "removes"), removed, right=("removes",))
