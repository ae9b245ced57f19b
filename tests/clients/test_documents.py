"""Examples of the notes that need torch or what is built on it, executed as they stand."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.test_readme import EXAMPLES  # noqa: E402

NEED_TORCH = [code for code in EXAMPLES if "import torch" in code or "from torch" in code]


@pytest.mark.parametrize("code", NEED_TORCH)
def test_examples_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_the_page_that_trains_a_model_and_the_section_on_torch_are_among_them() -> None:
    for needed in ("optimizer.step()", "scaled_dot_product_attention", "sdpa()"):
        assert any(needed in code for code in NEED_TORCH)
