"""templates/bring-your-own.md, from first line to last: its files are written, its call is made, its commands run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.base.assets import TEMPLATES

PAGE = (TEMPLATES / "bring-your-own.md").read_text()


def block(language: str) -> str:
    (result,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(result)


@pytest.mark.slow
def test_the_guide_leads_from_a_kernel_to_a_record_both_ways(tmp_path: Path) -> None:
    (tmp_path / "sharpen.cu").write_text(block("cuda"))
    (tmp_path / "sharpen.py").write_text(block("python"))
    here = {**os.environ, "TUNER_DB": str(tmp_path / "tuner.db"), "TUNER_OPERATORS": str(tmp_path), "TUNER_GPU": "H100"}

    def run(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=here, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    assert "predicted {'block_x'" in run(sys.executable, "sharpen.py")  # on a machine with a GPU: measured
    lines = [shlex.split(line, comments=True) for line in block("console").splitlines()]
    outputs = {line[1]: run(sys.executable, "-m", *line) for line in lines if line[0] == "tuner"}
    assert list(outputs) == ["import", "verify", "search", "explain"]
    assert "wrote sharpen/imported/source.cu" in outputs["import"]
    assert ": 4 of 8,100 blocks, " in outputs["verify"]  # of 32 x 8 threads, as the source defines them
    assert outputs["verify"].rstrip().endswith("ok")
    assert "verified" in outputs["search"] and "winner (predicted" in outputs["search"]
    assert "record" in outputs["explain"]
    assert (tmp_path / "sharpen" / "imported" / "source.cu").read_text() == block("cuda")
