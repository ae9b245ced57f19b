"""Tests of a report's HTML, Markdown and JSON, parsed with the standard library."""

import json
import math
import random
import re
from base64 import b64encode
from collections import Counter
from dataclasses import replace
from functools import cache
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.report_factory import DEFAULT, PROBLEM, attempt, report_data
from tuner import report
from tuner.errors import MachineError
from tuner.report import BeliefFacts, ReportData
from tuner.results.attempt import Evidence, Failed, Stage
from tuner.results.verdict import OutputError, Verdict
from tuner.search.portfolio import Family, ServedProblem, Terms

HOSTILE = '</script><script>alert(1)</script> <img src=http://evil.example/x onerror=alert(1)> "quoted" & | `code`'


class Page(HTMLParser):
    """What tests ask of a page: tags with attributes, and the text that a reader sees."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.pieces: list[str] = []
        self._raw = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._raw = tag if tag in self.raw else ""

    def handle_endtag(self, _: str) -> None:
        self._raw = ""

    def handle_data(self, data: str) -> None:
        (self.raw[self._raw] if self._raw else self.pieces).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def failed(data: ReportData) -> ReportData:
    """The same search, had every config been wrong."""
    wrong = Failed(Stage.VERIFY, "o: RMSE ratio 0.3 (limit 0.0052)")
    attempts = [a if a.failure else replace(a, failure=wrong) for a in data.attempts]
    return replace(data, attempts=attempts, record=None, verdicts={}, source="", importance={}, work=(), usage="")


def hostile(data: ReportData) -> ReportData:
    """The same search, where every text is an attack."""
    failure = Failed(Stage.COMPILE, HOSTILE, HOSTILE * 100)
    attempts = [replace(a, failure=failure, config={**a.config, "note": HOSTILE}) for a in data.attempts[:3]]
    return replace(
        data,
        attempts=[*attempts, *data.attempts[3:]],
        problem={**PROBLEM, "note": HOSTILE},
        command=HOSTILE,
        source=f"// {HOSTILE}\n",
        environment={HOSTILE: HOSTILE},
        usage=HOSTILE,
    )


CASES = {
    "predicted": lambda: [report_data(60)],
    "measured": lambda: [report_data(60, measured=True)],
    "several": lambda: [report_data(12, problem={**PROBLEM, "head_dim": d}) for d in (64, 72)],
    "mixed": lambda: [report_data(12), report_data(12, measured=True)],
    "one attempt": lambda: [report_data(1)],
    "no attempt": lambda: [report_data(0)],
    "all failed": lambda: [failed(report_data(20))],
    "unverified": lambda: [replace(report_data(20), record=None, verdicts={})],
    "hostile": lambda: [hostile(report_data(20))],
    "bare": lambda: [replace(report_data(20), default=None, importance={}, spaces=(), environment={}, source="")],
}


@cache
def html(case: str) -> str:
    return report.render(CASES[case]())


@cache
def page(case: str) -> Page:
    return Page(html(case))


every_case = pytest.mark.parametrize("case", CASES)


@every_case
def test_a_page_has_one_title_unique_ids_and_links_that_lead_somewhere(case: str) -> None:
    attributes = [attributes for _, attributes in page(case).tags]
    ids = Counter(attribute["id"] for attribute in attributes if "id" in attribute)
    assert page(case).count("h1") == 1
    assert max(ids.values()) == 1
    assert {attribute["href"][1:] for attribute in attributes if "href" in attribute} <= ids.keys()


@every_case
def test_a_page_loads_nothing_and_runs_only_its_own_script(case: str) -> None:
    policy = next(a["content"] for t, a in page(case).tags if t == "meta" and "content-security" in str(a).lower())
    own = [text for text in page(case).raw["script"] if '"use strict"' in text]
    assert policy.startswith("default-src 'none';")
    assert len(own) == 1
    assert b64encode(sha256(own[0].encode()).digest()).decode() in policy
    assert not [tag for tag, _ in page(case).tags if tag in ("link", "img", "iframe", "object", "base")]
    assert not [a for _, a in page(case).tags if {"src", "style", "onerror", "onclick"} & a.keys()]


def test_counts_of_a_space_too_large_to_list_say_that_they_are_estimates() -> None:
    data = report_data()
    (space,) = data.spaces
    shown = Page(report.render([replace(data, spaces=(replace(space, estimated=True),))])).text
    assert "about 1,731" in shown and "about −6,912" in shown
    assert "about 1,731" not in Page(report.render([data])).text


def test_a_page_says_what_predicted_terms_stand_for() -> None:
    assert "L2 : bytes between L2 and the SMs" in page("predicted").text


@every_case
def test_a_page_never_shows_how_python_spells_nothing(case: str) -> None:
    shown = page(case).text.replace(HOSTILE, "").replace("causal=True", "")
    assert not re.search(r"\b(None|nan|inf|Undefined|True|False)\b", shown)


@every_case
def test_each_region_a_keyboard_can_reach_has_a_name_of_its_own(case: str) -> None:
    names = Counter(a["aria-label"] for _, a in page(case).tags if a.get("role") == "region")
    assert not [name for name, times in names.items() if times > 1]
    assert not [a for _, a in page(case).tags if a.get("tabindex") == "0" and not a.get("aria-label")]


@every_case
def test_the_embedded_data_are_what_the_json_report_says(case: str) -> None:
    embedded = next(text for text in page(case).raw["script"] if text.startswith("{"))
    assert json.loads(embedded) == json.loads(report.data_json(CASES[case]()))


def test_hostile_text_stays_text() -> None:
    assert html("hostile").count("</script>") == 2
    assert HOSTILE in page("hostile").text
    assert "<img" not in html("hostile")


def test_equal_data_give_equal_bytes() -> None:
    assert report.render([report_data(30)]) == report.render([report_data(30)])


def test_the_order_in_which_importance_is_handed_over_changes_nothing() -> None:
    data, shares = report_data(12), {"BT": 0.5, "BK": 0.25, "warps": 0.25, "stages": 0.0, "swizzle": 0.0}
    orders = (shares, dict(reversed(shares.items())))
    one, other = (report.render([replace(data, importance={"mma_sync": order})]) for order in orders)
    assert one == other


def test_five_hundred_attempts_fit_in_600_kb() -> None:
    data = report_data(500)
    body = data.source[data.source.index("struct") :] * 26
    kernel = replace(data, source=data.source + body, default_source=data.default_source + body)
    assert len(kernel.source) > 12_000
    assert len(report.render([kernel]).encode()) <= 600_000


@pytest.mark.slow
def test_eight_problems_of_five_hundred_attempts_fit_in_4_mb() -> None:
    data = [report_data(500, problem={**PROBLEM, "seq_q": 64 * n}) for n in range(1, 9)]
    assert len(report.render(data).encode()) <= 4_000_000


@pytest.mark.slow
def test_a_page_of_more_than_4_mb_shows_its_last_problems_in_brief_and_says_so() -> None:
    data = [report_data(128, problem={**PROBLEM, "seq_q": 64 * n}) for n in range(1, 41)]
    html = report.render(data)
    assert len(html.encode()) <= 4_000_000
    (shown,) = re.findall(r"(\d+) of 40 problems are shown in brief", html)
    assert 0 < int(shown) < 40
    assert len(re.findall(r'<h2 id="[^"]*-title"', html)) == 40
    assert len(re.findall(r'<h3 id="[^"]*-convergence"', html)) == 40 - int(shown)


def test_predicted_costs_carry_a_banner_and_no_unit_of_time() -> None:
    text = page("predicted").text
    costs = text.replace(report_data(60).search.stopped, "").split("Search method")[0]
    assert "Predicted, not validated on sm_90a." in text
    assert "µs" not in text
    assert not re.search(r"\d\s?(µs|us|ms|s|ns)\b", costs)


def test_measured_times_carry_intervals_and_no_banner() -> None:
    data = report_data(60, measured=True)
    assert data.record and data.record.measurement
    assert "not validated" not in page("measured").text
    low, high = data.record.measurement.low_us, data.record.measurement.high_us
    assert f"{low:.2f} – {high:.2f}, 40 samples" in page("measured").text


def test_the_winner_stands_with_its_config_margin_and_verdict() -> None:
    data = report_data(60)
    assert data.record
    text = page("predicted").text
    assert f"runner-up (predicted) +{100 * data.record.margin:.1f}" in text
    assert f"value default BT {data.record.config['BT']} {DEFAULT['BT']} BK" in text
    assert "✓ verified On the emulator, 3 checks against float64." in text


def test_an_error_stands_with_the_case_it_was_found_on() -> None:
    data = report_data(20)
    assert data.record is not None
    errors = (OutputError("o", 0.99, 1e-3, 1.19, 1e-2, 5e-3, "seq_q=1 causal=true peaked"),)
    section = replace(data, record=replace(data.record, verdict=Verdict(errors)))
    case = "seq_q=1 peaked, relative to terms that cancel"
    text = Page(report.render([section])).text
    assert f"0.00416 RMSE ratio, limit 0.005 0.001 largest error, limit 0.01 on {case}" in text
    assert f"o 0.00416 ≤ 0.005 ({case})" in report.markdown([section])


def test_a_search_without_a_winner_says_where_it_failed() -> None:
    text = page("all failed").text
    assert "✗ No valid config 20 attempts, all failed." in text
    assert "o: RMSE ratio 0.3 (limit 0.0052)" in text


def test_a_search_whose_configs_have_no_verdict_serves_none() -> None:
    assert "none has a good verdict, so that none is served" in page("unverified").text


def test_a_wrong_finalist_is_a_failure_and_has_no_rank() -> None:
    data = report_data(30)
    index = max(data.verdicts)
    wrong = Verdict((OutputError("o", math.nan, math.inf, 0.01, 0.1),), findings=("race on smem",), checks=("T=63",))
    text = Page(report.render([replace(data, verdicts={**data.verdicts, index: wrong})])).text
    assert re.search(rf"emulate 1 race on smem .{{0,4}}Try {index + 1}\b", text)
    assert f" {index + 1} ✗ emulate" in text


def test_a_long_log_shows_its_head_and_its_tail() -> None:
    data = report_data(20)
    failure = Failed(Stage.COMPILE, "nvrtc said no", f"first line\n{'x' * 100_000}\nlast line")
    attempts = [replace(data.attempts[0], failure=failure), *data.attempts[1:]]
    text = Page(report.render([replace(data, attempts=attempts)])).text
    assert "first line" in text
    assert "last line" in text
    assert "95,521 characters left out" in text


def test_parameters_are_drawn_for_the_winning_implementation_only() -> None:
    data = report_data(30)
    other = attempt({**DEFAULT, "columns": 24}, random.Random(0), implementation="naive")
    text = report.render([replace(data, attempts=[*data.attempts, other])])
    assert "one line per config over BT, BK, warps" in text
    assert "One line per config of mma_sync" in text


def test_several_problems_are_named_by_the_fields_in_which_they_differ() -> None:
    titles = [f"flash_attention on sm_90a: head_dim={d}" for d in (64, 72)]
    text = page("several").text
    assert all(title in text for title in titles)
    assert re.search(r"head_dim=64 mma_sync .* head_dim=72 mma_sync", text)  # the index, which says it once
    assert "flash_attention on sm_90a: 2 problems" in text


def test_problems_of_several_operators_are_named_by_what_differs_within_one() -> None:
    data = report_data(8)
    wider = replace(data, problem=data.problem | {"head_dim": 80})
    text = report.render([data, wider, replace(data, operator="scan", problem={"rows": 4, "columns": 64})])
    assert "flash_attention on sm_90a: head_dim=80" in text
    assert '<h2 id="p3-title">scan on sm_90a <' in text


def test_predicted_and_measured_problems_never_share_a_table() -> None:
    text = page("mixed").text
    assert "Problems, measured" in text
    assert "Problems, predicted" in text


@every_case
def test_markdown_is_short_and_keeps_its_tables_whole(case: str) -> None:
    text = report.markdown(CASES[case]())
    assert len(text) < 7000
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_markdown_says_what_is_predicted() -> None:
    text = report.markdown(CASES["predicted"]())
    assert "Predicted, not validated on sm_90a" in text
    assert "relative cost (predicted)" in text


def test_json_holds_every_attempt_under_named_columns() -> None:
    data = report_data(20)
    (problem,) = json.loads(report.data_json([data]))["problems"]
    rows = [dict(zip(problem["attempts"]["columns"], row, strict=True)) for row in problem["attempts"]["rows"]]
    assert [row["config.BT"] for row in rows] == [attempt.config["BT"] for attempt in data.attempts]
    assert [row["stage"] for row in rows] == [a.failure.stage.value if a.failure else None for a in data.attempts]


def test_json_holds_what_an_attempt_cost_took_and_used() -> None:
    data = report_data(40, measured=True)
    (problem,) = json.loads(report.data_json([data]))["problems"]
    place = next(i for i, stored in enumerate(data.attempts) if stored.failure is None)
    row = dict(zip(problem["attempts"]["columns"], problem["attempts"]["rows"][place], strict=True))
    used, time, cost = (getattr(data.attempts[place], part) for part in ("resources", "measurement", "prediction"))
    assert (row["registers"], row["smem_bytes"], row["threads"]) == (used.registers, used.smem_bytes, used.threads)
    assert (row["time_us"], row["cost"]) == pytest.approx((time.time_us, cost.cost), rel=1e-5)
    assert "duplicate_of" not in row


def test_json_has_null_for_what_is_not_finite() -> None:
    data = report_data(8)
    verdict = Verdict((OutputError("o", math.nan, math.inf, 0.01, 0.1),))
    text = report.data_json([replace(data, verdicts={0: verdict})])
    assert '"rmse_ratio":null,"max_abs":null' in text


def test_writing_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out" / "report.html"
    for text in ("old", "new"):
        report.write(text, target)
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=r"cannot write the report to .*file/report\.html"):
        report.write("page", tmp_path / "file" / "report.html")


def test_a_portfolio_stands_before_the_problems_and_says_what_kind_its_regrets_are() -> None:
    problems = [{**PROBLEM, "seq_q": length} for length in (256, 4096)]
    places = (
        ServedProblem(problems[0], 0, 0.0, problems[1], 0.031),
        ServedProblem(problems[1], None, None, None, None),
    )
    family = Family({"head_dim": 72}, Evidence.PREDICTED, Terms(2, 0.05), (("mma_sync", DEFAULT),), places)
    data = [report_data(12, problem=problem) for problem in problems]
    text = Page(report.render(data, [family])).text
    assert "Portfolio: head_dim=72 1 config for 2 problems" in text
    assert "Not every problem is served." in text
    assert "behind its best (predicted)" in text
    assert "seq_q=256 1 0.0 % 3.1 %" in text.replace("\u00a0", " ")
    assert json.loads(report.data_json(data, [family]))["portfolios"][0]["members"][0][0] == "mma_sync"
    assert "# Portfolio: head_dim=72 (predicted)" in report.markdown(data, [family])


def test_a_portfolio_has_a_plot_of_the_gain_over_its_shapes() -> None:
    problems = [{**PROBLEM, "seq_q": size} for size in (256, 1024, 4096)]
    places = tuple(ServedProblem(problem, 0, 0.25, problems[0], 1.0) for problem in problems)
    family = Family({}, Evidence.PREDICTED, Terms(1, 0.3), (("mma_sync", DEFAULT),), places)
    shown = [
        replace(report_data(12, problem=problem), over_untuned=gain)
        for problem, gain in zip(problems, (1.0, 15.0, 31.0), strict=True)
    ]
    (html,) = re.findall(r'Figure: Portfolio 1".*?</svg>', report.render(shown, [family]), re.DOTALL)
    labels = re.findall(r'aria-label="(seq_q=[^"]*)"', html)
    for size, gain in ((256, "2.000×"), (1024, "16.0×"), (4096, "32.0×")):
        assert f"seq_q={size}, a record of its own: {gain}" in labels
    assert "seq_q=4096, the portfolio: 25.6×" in labels and "seq_q=4096, the nearest other record: 16.0×" in labels
    assert ">10×</text>" in html  # a logarithmic axis, since gains differ by more than ten times
    assert {f"#portfolio-1-p{n}" for n in (1, 2, 3)} == set(re.findall(r'href="([^"]*)"', html))


def test_fields_at_their_default_are_folded_and_a_summary_names_what_it_leaves_out() -> None:
    data = replace(report_data(12), defaults=("layout", "batch"))
    text = Page(report.render([data])).text
    assert "2 fields of the problem at their default layout=BTHD batch=2" in text
    short = report.markdown([data])
    assert "Not in this summary" in short and "the 12 attempts one by one" in short and "the CUDA source" in short


def test_each_implementation_has_a_table_of_its_own_parameters() -> None:
    data = report_data(12)
    other = attempt(DEFAULT, random.Random(0), implementation="naive")
    html = report.render([replace(data, attempts=[*data.attempts, replace(other, config={"columns": 24})])])
    tables = dict(re.findall(r'<table [^>]*data-implementation="(\w+)">(.*?)</thead>', html, re.DOTALL))
    assert list(tables) == ["mma_sync", "naive"]
    assert "columns" in tables["naive"] and "columns" not in tables["mma_sync"] and "swizzle" not in tables["naive"]


def test_what_guided_a_search_is_told_with_its_correlation() -> None:
    facts = BeliefFacts("mma_sync", "history of H100", 0.81, True), BeliefFacts("mma_sync", "prediction", 0.1, False)
    data = report_data(12)
    text = Page(report.render([replace(data, search=replace(data.search, beliefs=facts))])).text
    assert "mma_sync guided by history of H100: rank correlation 0.81, kept" in text
    assert "mma_sync guided by prediction: rank correlation 0.1, dropped" in text
