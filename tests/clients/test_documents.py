"""Tests of the documentation's examples that need torch, JAX or libraries on top of them."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jax")

from tests.test_docs import PAGES  # noqa: E402
from tests.test_readme import EXAMPLES, blocks  # noqa: E402

PROGRAMS = [*EXAMPLES, *("\n".join(blocks("python", page.read_text())) for page in PAGES)]
THEIRS = [
    code for code in PROGRAMS if any(f"{how} {name}" in code for how in ("import", "from") for name in ("torch", "jax"))
]


@pytest.mark.parametrize("code", THEIRS)
def test_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_the_page_that_trains_a_model_and_the_sections_on_torch_and_jax_are_among_them() -> None:
    for needed in ("optimizer.step()", "scaled_dot_product_attention", "sdpa()", "tuner.jax"):
        assert any(needed in code for code in THEIRS)
