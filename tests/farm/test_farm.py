"""A farm of two worker processes and a PostgreSQL server: its records, and what remains after the loss of a worker."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("distributed", reason="no Dask: pip install '.[farm]'")
pytest.importorskip("psycopg", reason="no psycopg: pip install '.[farm]'")

from tests.support import farm as processes
from tests.support.patience import GENEROUS_S
from tests.support.postgres import binaries, server
from tuner import operators
from tuner.arch import gpu
from tuner.base.assets import ROOT
from tuner.errors import MachineError, UsageError
from tuner.evaluate.measure.policy import MeasurementPolicy
from tuner.farm.client import Farm, refuse_unsafe
from tuner.farm.resources import NO_GPU, Description
from tuner.results.record import TuningRecord
from tuner.search import fleet, many_problems
from tuner.search.code_version import code_here
from tuner.search.many_problems import Campaign, CampaignRequest
from tuner.search.portfolio import Terms
from tuner.search.request import SearchRequest
from tuner.store.sql import Store

if TYPE_CHECKING:
    from tests.support.postgres import Server

pytestmark = [
    pytest.mark.slow,  # `make test-farm` runs them
    pytest.mark.skipif(binaries() is None, reason="no PostgreSQL server: apt-get install postgresql"),
]
GPU = gpu("sm_80")
SOURCE = ROOT / "tests" / "support" / "operators" / "row_add"
# The config whose kernel crashes, and the config whose plan kills the worker while the file KILL_FOR names the problem.
CRASH, KILL, CONFIGS = 5, 41, 48
PLAN = """
def plan(problem: Problem, config: Config) -> Plan:
    import os
    import signal
    from pathlib import Path

    marker = Path(os.environ.get("KILL_FOR", "/nowhere"))
    if config.stray == 41 and marker.is_file() and marker.read_text() == str(problem.rows):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def postgres() -> "Iterator[Server]":
    with server() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the operator farm_add: row_add with more configs; one crashes, one kills its worker."""
    root = tmp_path_factory.mktemp("operators")
    shutil.copytree(SOURCE, root / "farm_add", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (root / "farm_add").rglob("*.*"):
        path.write_text(path.read_text().replace("row_add", "farm_add"))
    implementation, kernel = (root / "farm_add" / "naive" / name for name in ("implementation.py", "kernel.cu.jinja"))
    text = implementation.read_text().replace("(-1, 0, 1, 2, 3, 4)", f"tuple(range(-1, {CONFIGS}))")
    implementation.write_text(text.replace("def plan(problem: Problem, config: Config) -> Plan:\n", PLAN.lstrip("\n")))
    crash = f"if (kStray == {CRASH}) *reinterpret_cast<int volatile*>(16) = 1;\n  if (kStray >= 0"
    kernel.write_text(kernel.read_text().replace("if (kStray >= 0", crash))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(operators.VARIABLE, "")
        operators.add_folder(root)
        yield root
    operators.__path__.remove(str(root))


@dataclass(frozen=True)
class Cluster:
    address: str
    folder: Path
    marker: Path  # if it exists, it contains the rows of the problem whose config KILL kills the worker

    def workers(self, count: int, db: str) -> Any:
        """Worker processes whose environment names the database."""
        return processes.workers(self.address, count, self.folder, {"TUNER_DB": db, "KILL_FOR": str(self.marker)})


@pytest.fixture(scope="module")
def cluster(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:  # noqa: ARG001  # see farm_add
    log = tmp_path_factory.mktemp("farm")
    with processes.scheduler(log) as address:
        yield Cluster(address, log, log / "kill")


def request(db: str, rows: tuple[int, ...], budget: int) -> CampaignRequest:
    operator = operators.load("farm_add")
    searches = tuple(
        SearchRequest(operator, operator.problem(rows=number, entries=number + 2), GPU, budget=budget)
        for number in rows
    )
    return CampaignRequest(searches, Terms(), MeasurementPolicy(), workers=1, db=db)


def wanted() -> Description:
    return Description(code_here(), NO_GPU)


def farmed(cluster: Cluster, campaign_request: CampaignRequest, count: int) -> Campaign:
    with cluster.workers(count, str(campaign_request.db)), Farm(cluster.address, patience_s=GENEROUS_S) as farm:
        processes.wait_until(lambda: farm.capacity(wanted()) == count, "the workers do not register")
        workers = fleet.Workers(farm.executor(wanted()), lambda: farm.capacity(wanted()))
        return fleet.run(campaign_request, workers)


def dateless(result: Campaign) -> list[TuningRecord | None]:
    return [replace(outcome.record, created="") if outcome.record else None for outcome in result.outcomes]


def test_one_worker_two_and_none_find_the_same_records_and_a_crash_costs_its_verdict_only(
    postgres: "Server", cluster: Cluster
) -> None:
    rows = (3, 5, 9, 17)
    requests = [request(postgres.database(), rows, CRASH + 2) for _ in range(3)]

    @contextmanager
    def unwatched(_: object) -> Iterator[Any]:
        yield lambda _: None

    alone = many_problems.run(requests[0], unwatched, lambda: False)
    assert all(outcome.record is not None for outcome in alone.outcomes)
    for count in (1, 2):
        result = farmed(cluster, requests[count], count)
        assert dateless(result) == dateless(alone)
        assert result.families == alone.families
        verdicts = [tried.verdict for outcome in result.outcomes for tried in outcome.tried if tried.verdict]
        assert {verdict.ok for verdict in verdicts} == {True, False}


def test_a_worker_that_is_killed_loses_nothing_that_was_stored(postgres: "Server", cluster: Cluster) -> None:
    campaign_request = request(postgres.database(), (4, 6), 40)
    result: Future[Campaign] = Future()

    def search() -> None:
        try:
            result.set_result(fleet.run(campaign_request, workers))
        except BaseException as error:
            result.set_exception(error)

    with cluster.workers(2, str(campaign_request.db)), Farm(cluster.address, patience_s=GENEROUS_S) as farm:
        farm.require(wanted(), patience_s=GENEROUS_S)
        workers = fleet.Workers(farm.executor(wanted()), lambda: farm.capacity(wanted()))
        thread = Thread(target=search)
        thread.start()
        with Store.open(campaign_request.db) as store:
            killed: set[int] = set()

            def evaluating() -> bool:
                """Whether workers hold configs after the first batch was stored; their pids go into `killed`."""
                if store.count_attempts() > 17:
                    killed.update(
                        holder.pid for scope in scopes(campaign_request) for holder in store.claimed(scope).values()
                    )
                return bool(killed)

            processes.wait_until(evaluating, "no config is evaluated")
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        thread.join(GENEROUS_S)
        outcomes = result.result(timeout=0).outcomes
    assert all(outcome.record is not None for outcome in outcomes)
    assert max(outcome.reused for outcome in outcomes) > 0
    with Store.open(campaign_request.db) as store:
        configs = [(row.attempt.identity, row.id) for row in store.attempts("farm_add")]
        assert len({identity for identity, _ in configs}) == len(configs)


def scopes(campaign_request: CampaignRequest) -> list[str]:
    from tuner.evaluate.predict.cost import MODEL
    from tuner.spec.problem import canonical
    from tuner.store.sql import claims

    return [
        claims.scope("farm_add", canonical(search.problem), GPU.name, MODEL) for search in campaign_request.searches
    ]


def test_a_problem_that_loses_two_workers_is_given_up_alone_with_its_config(
    postgres: "Server", cluster: Cluster
) -> None:
    cluster.marker.write_text("8")
    result = farmed(cluster, request(postgres.database(), (7, 8), CONFIGS), 1)
    cluster.marker.unlink()
    well, lost = result.outcomes
    assert well.record is not None and lost.record is None
    assert lost.why_stopped == f"it lost 2 workers, the last one at naive stray={KILL}"


def test_a_gpu_that_nobody_has_and_other_code_are_refused_by_name(postgres: "Server", cluster: Cluster) -> None:
    with cluster.workers(1, postgres.database()), Farm(cluster.address, patience_s=GENEROUS_S) as farm:
        processes.wait_until(farm.workers, "no worker registers")
        with pytest.raises(
            MachineError, match=r"no worker with GPU H100 at .* after 1 s; its workers: 1 without a GPU"
        ):
            farm.require(replace(wanted(), gpu="H100"), patience_s=1)
        other = replace(wanted(), code="tuner 0.1.0, operators 0123456789ab, nvrtc 13.3")
        with pytest.raises(
            MachineError, match=r"with the code of this search .*operators 0123456789ab.*workers: 1 with tuner"
        ):
            farm.require(other, patience_s=1)
        assert "their code differs" in farm.refused(other)[0]


def test_a_worker_with_another_database_is_refused(postgres: "Server", cluster: Cluster) -> None:
    campaign_request = request(postgres.database(), (3,), 1)
    with cluster.workers(1, postgres.database()), Farm(cluster.address, patience_s=GENEROUS_S) as farm:
        farm.require(wanted(), patience_s=GENEROUS_S)
        workers = fleet.Workers(farm.executor(wanted()), lambda: 1)
        with pytest.raises(UsageError, match="knows nothing of this search"):
            fleet.run(campaign_request, workers)


def certificates(folder: Path) -> dict[str, str]:
    """Dask's variables for one self-signed certificate in all three roles."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.TraditionalOpenSSL
    plain = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(plain)
    names = {"CA_FILE": "cert.pem"}
    for role in ("CLIENT", "SCHEDULER", "WORKER"):
        names |= {f"{role}__CERT": "cert.pem", f"{role}__KEY": "key.pem"}
    return {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(folder / file) for name, file in names.items()}


def test_the_command_searches_by_tls_and_plain_tcp_gets_no_answer(
    postgres: "Server", folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    tls, db = certificates(tmp_path), postgres.database()
    (tmp_path / "problems.jsonl").write_text('{"rows": 3, "entries": 5}\n{"rows": 6, "entries": 8}\n')
    options = ["--budget", "2", "--workers", "1", "--problems", str(tmp_path / "problems.jsonl"), "--json"]
    command = [sys.executable, "-m", "tuner", "search", "farm_add", "--gpu", "sm_80", *options]
    command += ["--db", db, "--report", str(tmp_path / "report.html")]
    with processes.scheduler(tmp_path, "tls", tls) as address, processes.workers(address, 1, tmp_path, tls):
        environment = {**os.environ, **tls, operators.VARIABLE: str(folder)}
        done = subprocess.run(
            [*command, "--farm", address], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=GENEROUS_S
        )
        assert done.returncode == 0, done.stderr
        assert "1 worker · searching: 2/2 problems" in done.stderr
        with pytest.raises(MachineError, match="no Dask scheduler answers at tcp"):
            Farm(address.replace("tls", "tcp"), patience_s=2)
    with Store.open(db) as store:
        assert len(store.records("farm_add")) == 2


@pytest.mark.parametrize(
    ("address", "insecure", "refused"),
    [
        ("tcp://10.0.0.1:8786", False, "Use tls://"),
        ("tcp://10.0.0.1:8786", True, ""),
        ("tcp://127.0.0.1:8786", False, ""),
        ("tls://10.0.0.1:8786", False, ""),
        ("10.0.0.1:8786", False, "give tls://HOST:PORT"),
        ("ucx://10.0.0.1:8786", True, "give tls://HOST:PORT"),
    ],
)
def test_plain_tcp_is_for_this_machine_unless_it_is_allowed(address: str, insecure: bool, refused: str) -> None:
    if not refused:
        refuse_unsafe(address, insecure=insecure)
        return
    with pytest.raises(UsageError, match=refused):
        refuse_unsafe(address, insecure=insecure)


def test_no_password_is_in_a_unit() -> None:
    from tuner.store.sql import without_password

    url = "postgresql://me:secret@host:1234/db?sslmode=require&sslpassword=hidden"
    assert without_password(url) == "postgresql://me@host:1234/db?sslmode=require"
    with pytest.raises(UsageError, match="no database that other machines reach"):
        without_password("tuner.db")
