"""Tests of the default file name of a report."""

from dataclasses import make_dataclass, replace

from tuner import operators
from tuner.report import default_path

PROBLEM = operators.load("flash_attention").problem()


def name(*problems: object) -> str:
    return default_path("flash_attention", "RTX 5090", problems).name


def test_a_page_is_named_by_what_is_not_the_default() -> None:
    assert name(PROBLEM) == "flash_attention-RTX_5090.html"
    result = name(replace(PROBLEM, head_dim=72, head_dim_v=72, causal=True, seq_q=512, seq_k=512))
    assert result == "flash_attention-RTX_5090-head_dim_72-causal-seq_q_512.html"


def test_other_problems_have_other_names() -> None:
    others = [replace(PROBLEM, **{field: 64}) for field in ("head_dim", "batch", "heads", "seq_q", "seq_k")]
    names = [name(PROBLEM), *map(name, others), name(PROBLEM, *others), name(*others)]
    assert len(set(names)) == len(names)


def test_a_name_is_short_enough_for_a_file_whatever_it_tells() -> None:
    names = [default_path("attention" * 40, "H100", [replace(PROBLEM, batch=batch)]).name for batch in (2, 3)]
    assert len(set(names)) == 2 and max(map(len, names)) < 200


def test_texts_of_a_problem_name_no_folder() -> None:
    odd = make_dataclass("Problem", [("order", str, "rows")], frozen=True)
    pages = [default_path("myop", "H100", [odd(order)]) for order in ("a/b", "a_b", "../b")]
    assert len({page.parent for page in pages}) == 1
    assert len({page.name for page in pages}) == 3


def test_gpus_whose_names_differ_in_odd_characters_have_pages_of_their_own() -> None:
    gpus = [f"{name} (sm_89, 20 SMs)" for name in ("A+B", "A B", "A'B", "A" * 200, "A" * 201)]
    pages = [default_path("flash_attention", gpu, [PROBLEM]).name for gpu in gpus]
    assert len(set(pages)) == len(pages)


def test_reports_from_two_databases_do_not_overwrite_each_other() -> None:
    pages = {default_path("flash_attention", "H100", [PROBLEM], database).name for database in ("", "/a.db", "/b.db")}
    assert len(pages) == 3
