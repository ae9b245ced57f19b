"""Where databases are: `TUNER_DB`, the user's own, and the records that ship with the package."""

import os
from pathlib import Path

from platformdirs import user_data_path

from tuner.assets import DB

MEMORY = ":memory:"
SHIPPED = DB / "tuned"


def user_database() -> Path:
    """The user's own database; it need not exist yet."""
    return user_data_path("tuner", appauthor=False) / "tuner.db"


def named() -> tuple[str, ...]:
    """What `TUNER_DB` lists: files separated by `os.pathsep`, or one URL."""
    listed = os.environ.get("TUNER_DB", "")
    found = [listed] if "://" in listed else listed.split(os.pathsep)  # a URL holds colons of its own
    return tuple(filter(None, found))


def database() -> str:
    """Where a search writes when nobody says: the first of `TUNER_DB`, else the user's own database."""
    return next(iter(named()), str(user_database()))


def layers() -> tuple[str, ...]:
    """Where an application reads records, in order, as far as it exists: the first place that has one wins."""
    known = (*named(), str(user_database()), str(SHIPPED))
    return tuple(place for place in known if "://" in place or Path(place).expanduser().exists())
