"""The bundle of this process, and the contents of new bundles: the machine code that calls and records need."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner import arch
from tuner.base.cache import Cache, CacheEntry
from tuner.base.canonical_json import decode
from tuner.compiler import nvrtc
from tuner.compiler.cubin import Cubin
from tuner.compiler.render import render
from tuner.compiler.source import Source
from tuner.compiler.toolkit import Options
from tuner.dispatcher.config_choice import refusal
from tuner.errors import StoreError
from tuner.operators import instance
from tuner.results.attempt import Failed
from tuner.results.record import TuningRecord
from tuner.spec.instance import InstanceFields
from tuner.store.bundle import Bundle
from tuner.store.locations import BUNDLE


def of_environment() -> Bundle | None:
    """Return the bundle that `TUNER_BUNDLE` names; None without it. Raises StoreError if it cannot be used."""
    named = os.environ.get(BUNDLE)
    return Bundle.open(Path(named).expanduser()) if named else None


def cubin(bundle: Bundle, source: Source, options: Options) -> Cubin | None:
    """Return the machine code of a source in a bundle. Raises StoreError if the entry is invalid."""
    entry = bundle.cubin(nvrtc.key_without_compiler(source, options))
    if entry is None:
        return None
    try:
        return nvrtc.kept(source, options, _Entries(Path(), None, {nvrtc.key_without_compiler(source, options): entry}))
    except (ValueError, KeyError, TypeError, LookupError, ArithmeticError, OSError) as error:
        raise StoreError(f"{bundle.path} has machine code that cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Entries(Cache):
    """Cache entries in memory."""

    entries: dict[str, CacheEntry] = field(default_factory=dict)

    def get(self, key: str) -> CacheEntry | None:
        return self.entries.get(key)

    def put(self, key: str, entry: CacheEntry) -> bool:
        self.entries[key] = entry
        return True


def packed(
    records: Iterable[TuningRecord], cache: Cache
) -> tuple[list[TuningRecord], dict[str, CacheEntry], Sequence[str]]:
    """Return the records that today's code serves, the machine code of their kernels, and a message for each other
    record.

    Raises MachineError without a compiler.
    """
    served, refused = [], []
    entries = _Entries(Path())
    for record in records:
        of = record.identity
        why = refusal(record)
        if why is None:
            chosen = instance(InstanceFields(of.operator, of.implementation, decode(of.problem), record.config))
            source, options = render(chosen), Options(arch.gpu(of.gpu).arch.name)
            outcome = nvrtc.compile(source, options, cache)
            if isinstance(outcome, Failed):
                why = f"it does not compile: {outcome.reason}"
            else:
                nvrtc.keep(source, outcome, entries)
                served.append(record)
        if why is not None:
            refused.append(f"{of.operator}/{of.implementation} on {of.gpu}: {why}")
    slim = {key: CacheEntry(entry.data, _without_ptx(entry)) for key, entry in entries.entries.items()}
    return served, slim, refused


def _without_ptx(entry: CacheEntry) -> dict[str, str | float]:
    return {name: value for name, value in dict(entry.metadata).items() if name != "ptx"}
