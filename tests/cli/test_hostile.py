"""Tests of the command line on difficult machines: no UTF-8, no writable folder, a closed pipe."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.arch import gpu
from tuner.compiler.render import render
from tuner.operators import implementation, load
from tuner.spec.instance import Instance

ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def tuner(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    line = [sys.executable, "-m", "tuner", *arguments]
    return subprocess.run(line, capture_output=True, env={**os.environ, **environment}, check=False)


def test_a_source_is_the_same_text_in_a_locale_without_utf8() -> None:
    done = tuner("render", "flash_attention", "--gpu", "sm_80", "--implementation", "split_keys", "--json", **ASCII)
    assert done.returncode == 0, done.stderr
    operator, result, target = load("flash_attention"), implementation("flash_attention", "split_keys"), gpu("sm_80")
    problem = operator.problem()
    here = render(Instance.default(operator, result, problem, target.arch))
    assert any(not text.isascii() for _, text in here.headers)
    assert json.loads(done.stdout.decode(errors="replace"))["digest"] == here.digest


def test_help_that_a_terminal_cannot_spell_has_question_marks() -> None:
    done = tuner("search", "flash_attention", "--help", **ASCII)
    assert done.returncode == 0, done.stderr
    assert b"softmax(scale ? Q K?) V" in done.stdout


def test_a_cache_that_cannot_be_written_is_one_line_and_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    head = ("inspect", "flash_attention", "--gpu", "sm_80", "--head-dim", "8", "--implementation", "naive")
    done = tuner(*head, TUNER_CACHE_DIR=str(tmp_path / "file" / "cache"), TUNER_DB=str(tmp_path / "tuner.db"))
    assert done.returncode == 0
    warned = [line for line in done.stderr.decode().splitlines() if "warn" in line.lower()]
    assert [line.startswith("warning: cannot write to the cache at ") for line in warned] == [True]


BUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


@pytest.mark.sampled(3)
@BUFFERED
@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("search", "--help"), ("operators",)])
def test_a_pipe_that_is_closed_early_ends_a_command_in_peace(arguments: tuple[str, ...], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    line = [sys.executable, "-m", "tuner", *arguments]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(line, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.sampled(3)
@BUFFERED
@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("operators",), ("operators", "--json")])
def test_what_a_full_disk_refuses_is_one_message(arguments: tuple[str, ...], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        line, environment = [sys.executable, "-m", "tuner", *arguments], os.environ | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, env=environment, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: No space left on device")
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_while_modules_load_leaves_no_traceback() -> None:
    code = """if True:
        import os, signal, sys
        class Interrupting:
            def find_spec(self, name, *_):
                if name == "tuner.cli.app":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupting())
        from tuner.cli import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(("name", "why"), [("none.json", "No such file or directory"), (".", "Is a directory")])
def test_a_recording_that_cannot_be_read_is_told_in_words(name: str, why: str, tmp_path: Path) -> None:
    done = tuner("replay", str(tmp_path / name))
    assert (done.returncode, done.stderr.decode()) == (2, f"error: cannot read {tmp_path / name}: {why}\n")
