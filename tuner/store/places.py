"""Where databases are: `TUNER_DB`, the user's own, and the records that ship with the package."""

import os
from pathlib import Path

from platformdirs import user_data_path

from tuner.base.assets import DB
from tuner.errors import StoreError

MEMORY = ":memory:"
SHIPPED = DB / "tuned"


def user_database() -> Path | None:
    """The user's own database, which need not exist yet; None where nobody knows of a home."""
    try:
        found = user_data_path("tuner", appauthor=False) / "tuner.db"
    except RuntimeError:
        return None
    return found if found.is_absolute() else None  # before its version 4.14 platformdirs says ~ then


def named() -> tuple[str, ...]:
    """What `TUNER_DB` lists: files separated by `os.pathsep`, or one URL."""
    listed = os.environ.get("TUNER_DB", "")
    found = [listed] if "://" in listed else listed.split(os.pathsep)  # a URL holds colons of its own
    return tuple(filter(None, found))


def database() -> str:
    """Where a search writes when nobody says: the first of `TUNER_DB`, else the user's own database."""
    found = next(iter(named()), user_database())
    if found is None:
        raise StoreError("there is no home for a database: name one, by TUNER_DB or --db")
    return str(found)


def layers() -> tuple[str, ...]:
    """Where an application reads records, in order, as far as it exists: the first place that has one wins."""
    own = user_database()
    known = (*named(), *([str(own)] if own else []), str(SHIPPED))
    return tuple(place for place in known if "://" in place or _exists(Path(place)))


def _exists(path: Path) -> bool:
    try:
        return path.expanduser().exists()
    except (OSError, RuntimeError):  # in a folder that this user may not enter; ~ where nobody knows of a home
        return False
