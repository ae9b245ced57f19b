"""What a worker publishes as names of Dask resources: its code, its GPU, and the GPU's UUID.

A task requires the resource with the code and GPU of its search, so workers with other code or another GPU never
receive it.
"""

from dataclasses import dataclass

_PREFIX, _GPU = "kerntune: ", "; GPU "
NO_GPU = "none"


@dataclass(frozen=True, slots=True)
class Description:
    """A worker's code (`tuner.search.code_version`) and the name of its GPU, or NO_GPU."""

    code: str
    gpu: str

    @property
    def resource(self) -> str:
        return f"{_PREFIX}{self.code}{_GPU}{self.gpu}"

    def __str__(self) -> str:
        return f"{self.code}, GPU {self.gpu}"


def described(resource: str) -> Description | None:
    """Return the description in a resource's name; None for other resources."""
    code, separator, gpu = resource.removeprefix(_PREFIX).partition(_GPU)
    return Description(code, gpu) if separator and resource.startswith(_PREFIX) else None


def of_device(uuid: str) -> str:
    """Return the resource of the worker that has a particular GPU."""
    return f"{_PREFIX}device {uuid}"
