"""The functions of `tuner.dispatcher`: one per operator, and those that use the process-wide dispatcher."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from tuner import arch
from tuner.base.fork import ForkGuard
from tuner.dispatcher import record_watcher
from tuner.dispatcher.calls import Dispatcher, request_of
from tuner.dispatcher.config_choice import Explanation
from tuner.dispatcher.untuned_warnings import Miss
from tuner.spec.operator import Operator


def explain(operator: str, *args: Any, device: str | None = None, **kwargs: Any) -> Explanation:
    """Return what the call `operator(*args, **kwargs)` would run, and why. Nothing is compiled, run or counted."""
    return _active().explain(operator, *args, device=device, **kwargs)


def misses() -> tuple[Miss, ...]:
    """Return the problems that ran with a default config since the last `reload`, the most frequent first."""
    return _active().misses()


def warmup(operator: str, *problems: Any, device: str | None = None, gpu: str | None = None) -> None:
    """Compile the kernels for calls on `problems` (Problems, or mappings of their fields).

    The target is this machine's GPU, or the emulator if there is none or if device="emulator". `gpu` names another GPU,
    as `--gpu` does, e.g. that of the machine for which an image is built. Compiled kernels are kept in the disk cache
    (`TUNER_CACHE_DIR`), which may then be read-only; calls on a GPU that find them need no compiler.
    """
    _active().warmup(operator, *problems, device=device, target=None if gpu is None else arch.gpu(gpu))


def reload() -> None:
    """Read the records, `TUNER_GPU` and `TUNER_STRICT` again. Calls in progress finish with the old ones."""
    global _dispatcher
    record_watcher.watch(_renew)  # started first, so that records arriving during the read are noticed
    before, _dispatcher = _dispatcher, Dispatcher.from_environment()
    if before is not None:
        before.close()


def _renew() -> None:
    """Switch to new records; called by the watching thread concurrently with calls."""
    global _dispatcher
    before = _dispatcher
    if before is not None:
        renewed = before.renewed()
        with _starting:
            if _dispatcher is before:  # unless another thread reloaded meanwhile
                _dispatcher = renewed


def function(operator: Operator[Any]) -> Callable[..., Any]:
    """Return the operator's `call` for applications: its signature and docstring, plus `device`."""

    @wraps(operator.call)
    def call(*args: Any, device: str | None = None, **kwargs: Any) -> Any:
        return _active().run(operator, request_of(operator, args, kwargs), device)

    called = signature(operator.call)
    added = Parameter("device", Parameter.KEYWORD_ONLY, default=None, annotation=str | None)
    parameters = sorted([*called.parameters.values(), added], key=lambda parameter: parameter.kind)
    shown = called.replace(parameters=parameters, return_annotation=Any)
    call.__signature__ = shown  # type: ignore[attr-defined]  # read by help() and editors
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": Any}
    call.__module__, call.__qualname__, call.__name__ = "tuner.dispatcher", operator.name, operator.name
    call.__doc__ = f"{(operator.call.__doc__ or operator.summary).rstrip()}\n\n{_DEVICE}"
    return call


_DEVICE = """    device: "emulator" takes arrays in CPU memory, "cuda" arrays on a GPU; by default, where they are.
    """


_dispatcher: Dispatcher | None = None
_starting = ForkGuard("read the records")


def _active() -> Dispatcher:
    return _dispatcher or _started()


def _started() -> Dispatcher:
    with _starting:
        if _dispatcher is None:
            reload()
    assert _dispatcher is not None
    return _dispatcher
