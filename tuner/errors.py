"""What can be wrong with a request or a machine; applications catch these.

A config's failure is not here: that is a value, `result.Failed`.

TunerError            anything that stops a command; its text says what, with which value, and what to do
├── UsageError        the request is wrong: unknown GPU, operator or option, head_dim 7, a refused config (also a
│   │                 ValueError, which callers of other libraries' functions catch)
│   └── InputError    an application's arrays are wrong: shape, dtype, strides, device
├── MachineError      this machine lacks something: g++, NVRTC, a GPU, disk space, write permission
├── TemplateError     an operator's own files are wrong: template variable, plan, missing attribute
├── StoreError        the database is corrupt, newer than this program, or not writable
└── NoValidConfigError  the search ended without one config that works
"""

from collections.abc import Iterable


class TunerError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 2


class UsageError(TunerError, ValueError):
    """The request is wrong; the text lists what is accepted."""


class InputError(UsageError):
    """An application's arrays do not fit the operator."""


class MachineError(TunerError):
    """The machine lacks something that the request needs; the text says what to install."""


class TemplateError(TunerError):
    """An operator's files contradict each other."""


class StoreError(TunerError):
    """The database cannot be used as it is."""


class NoValidConfigError(TunerError):
    """No config of the space survived compiling and checking."""

    exit_code = 1


def suggestion(word: str, known: Iterable[str], listing: str) -> str:
    """Return a suggestion for `word`: at most three similar names, then the command that lists all."""
    from difflib import get_close_matches  # needed only for a message

    names = {name.lower(): name for name in known}
    near = [names[name] for name in get_close_matches(word.lower(), names, 3)]
    near = near or [name for lower, name in names.items() if word and lower.startswith(word.lower())][:3]
    if near:
        return f"did you mean {' or '.join(near)}? `{listing}` lists all"
    return f"`{listing}` lists all"
