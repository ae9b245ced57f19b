"""The locations of databases: `TUNER_DB`, the user's own database, and the records that ship with the package."""

import os
from pathlib import Path

from platformdirs import user_data_path

from tuner.base.assets import DB
from tuner.errors import StoreError

MEMORY = ":memory:"
BUNDLE = "TUNER_BUNDLE"  # names a bundle, whose records have priority
SHIPPED = DB / "tuned"


def user_database() -> Path | None:
    """Return the user's database, which may not exist yet; None if the home folder is unknown."""
    try:
        path = user_data_path("tuner", appauthor=False) / "tuner.db"
    except RuntimeError:
        return None
    return path if path.is_absolute() else None  # platformdirs before 4.14 returns ~ in this case


def named() -> tuple[str, ...]:
    """Return the entries of `TUNER_DB`: files separated by `os.pathsep`, or one URL."""
    listed = os.environ.get("TUNER_DB", "")
    paths = [listed] if "://" in listed else listed.split(os.pathsep)  # a URL contains colons
    return tuple(filter(None, paths))


def database() -> str:
    """Return the database for a search without `--db`: the first entry of `TUNER_DB`, or else the user's database."""
    path = next(iter(named()), user_database())
    if path is None:
        raise StoreError("there is no home for a database: name one, by TUNER_DB or --db")
    return str(path)


def layers() -> tuple[str, ...]:
    """Return the existing sources of an application's records, by decreasing priority."""
    users, bundle = user_database(), os.environ.get(BUNDLE)
    first = [bundle] if bundle else []
    asked = [location for location in (*first, *named()) if "://" in location or _exists(Path(location), hidden=True)]
    others = (*([str(users)] if users else []), str(SHIPPED))
    return (*asked, *(location for location in others if _exists(Path(location), hidden=False)))


def _exists(path: Path, *, hidden: bool) -> bool:
    """Return whether a file exists; `hidden` is returned if this user may not enter its folder."""
    try:
        path.expanduser().stat()
    except PermissionError:
        return hidden
    except (OSError, RuntimeError):  # ~ with an unknown home folder
        return False
    return True
