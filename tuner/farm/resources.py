"""What a worker publishes about itself, as names of Dask resources: its code, its GPU's model, and that GPU's UUID.

A task requires the resource that names the code and the GPU of its search, so a worker with other code or another GPU
never receives it.
"""

from dataclasses import dataclass

_PREFIX, _GPU = "kerntune: ", "; GPU "
NO_GPU = "none"


@dataclass(frozen=True, slots=True)
class Description:
    """A worker's code (`tuner.search.code_version`), and the name of its GPU or NO_GPU."""

    code: str
    gpu: str

    @property
    def resource(self) -> str:
        return f"{_PREFIX}{self.code}{_GPU}{self.gpu}"

    @property
    def with_gpu(self) -> str:
        return "without a GPU" if self.gpu == NO_GPU else f"with GPU {self.gpu}"

    def __str__(self) -> str:
        return f"{self.code}, {self.with_gpu}"


def description_in(resource: str) -> Description | None:
    """The description that a resource names; None for a resource of another program."""
    code, separator, gpu = resource.removeprefix(_PREFIX).partition(_GPU)
    return Description(code, gpu) if separator and resource.startswith(_PREFIX) else None


def device_resource(uuid: str) -> str:
    """The resource of the worker with this GPU."""
    return f"{_PREFIX}device {uuid}"
