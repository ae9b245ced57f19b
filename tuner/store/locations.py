"""Where databases are: `TUNER_DB`, the user's own, and the records that ship with the package."""

import os
from pathlib import Path

from platformdirs import user_data_path

from tuner.base.assets import DB
from tuner.errors import StoreError

MEMORY = ":memory:"
BUNDLE = "TUNER_BUNDLE"  # names a bundle, whose records come first
SHIPPED = DB / "tuned"


def user_database() -> Path | None:
    """The user's database, which need not exist yet; None where the home folder is unknown."""
    try:
        path = user_data_path("tuner", appauthor=False) / "tuner.db"
    except RuntimeError:
        return None
    return path if path.is_absolute() else None  # before its version 4.14 platformdirs says ~ then


def named() -> tuple[str, ...]:
    """What `TUNER_DB` lists: files separated by `os.pathsep`, or one URL."""
    listed = os.environ.get("TUNER_DB", "")
    paths = [listed] if "://" in listed else listed.split(os.pathsep)  # a URL holds colons of its own
    return tuple(filter(None, paths))


def database() -> str:
    """Where a search writes without `--db`: the first of `TUNER_DB`, else the user's database."""
    path = next(iter(named()), user_database())
    if path is None:
        raise StoreError("there is no home for a database: name one, by TUNER_DB or --db")
    return str(path)


def layers() -> tuple[str, ...]:
    """Where an application reads records, in order, as far as it exists: the first place that has one wins."""
    own, bundle = user_database(), os.environ.get(BUNDLE)
    first = [bundle] if bundle else []
    asked = [place for place in (*first, *named()) if "://" in place or _exists(Path(place), hidden=True)]
    others = (*([str(own)] if own else []), str(SHIPPED))
    return (*asked, *(place for place in others if _exists(Path(place), hidden=False)))


def _exists(path: Path, *, hidden: bool) -> bool:
    """Whether a file exists; `hidden` is the answer for one in a folder that this user may not enter."""
    try:
        path.expanduser().stat()
    except PermissionError:
        return hidden
    except (OSError, RuntimeError):  # ~ where the home folder is unknown
        return False
    return True
