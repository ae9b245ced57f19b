"""Models of Hugging Face transformers on these kernels: `attn_implementation="kerntune_flash"`.

    import tuner.transformers
    tuner.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="kerntune_flash")

Training and generation, padded on either side, packed, with dynamic and static caches, and continuous batching. What a
model asks for and is not supported raises an error that names it, before anything is computed.
"""

try:
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ImportError("tuner.transformers needs transformers: pip install transformers", name="transformers") from error

from tuner.transformers.registration import NAME, register

__all__ = ["NAME", "register"]
