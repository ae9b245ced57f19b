"""What a worker of a farm publishes of itself, as names of Dask resources: its code, its GPU, and that GPU's UUID.

A task asks for the resource that names the code and the GPU of its search, so that no worker with other code, or
another GPU, ever gets it.
"""

from dataclasses import dataclass

_PREFIX, _GPU = "kerntune: ", "; GPU "
NO_GPU = "none"


@dataclass(frozen=True, slots=True)
class Description:
    """A worker: its code (`tuner.search.code_version`) and the name of its GPU, or NO_GPU."""

    code: str
    gpu: str

    @property
    def resource(self) -> str:
        return f"{_PREFIX}{self.code}{_GPU}{self.gpu}"

    def __str__(self) -> str:
        return f"{self.code}, GPU {self.gpu}"


def described(resource: str) -> Description | None:
    """What a resource says of its worker; None where it is another's."""
    code, separator, gpu = resource.removeprefix(_PREFIX).partition(_GPU)
    return Description(code, gpu) if separator and resource.startswith(_PREFIX) else None


def of_device(uuid: str) -> str:
    """The resource of the worker that has a certain GPU."""
    return f"{_PREFIX}device {uuid}"
