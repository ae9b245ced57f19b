"""A PostgreSQL server of this machine in a temporary folder, as installed by Debian, for tests.

python -m tests.support.postgres COMMAND    # with TUNER_TEST_POSTGRES=postgresql://… of an empty database
"""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psycopg

_TCP = "-c listen_addresses=127.0.0.1 -c fsync=off -c max_connections={most}"


def binaries() -> Path | None:
    """Return the folder of initdb and pg_ctl; None without a server."""
    on_path = shutil.which("pg_ctl")
    folders = [Path(on_path).parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


class Server:
    """A server that listens on 127.0.0.1 and accepts any login."""

    def __init__(self, folder: Path, most: int) -> None:
        result = binaries()
        assert result is not None, "the caller has asked"
        self._binaries, self._data, self.port = result, folder / "data", free_port()
        self._options = f"{_TCP.format(most=most)} -p {self.port} -k {folder}"
        self._user = _unprivileged()
        if self._user:
            shutil.chown(folder, self._user)
        self._run("initdb", "-D", self._data, "-U", "tuner", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()

    def database(self, port: int | None = None) -> str:
        """Return the URL of a new, empty database."""
        name = f"t{uuid4().hex}"
        with psycopg.connect(f"postgresql://tuner@127.0.0.1:{self.port}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://tuner@127.0.0.1:{port or self.port}/{name}"

    def start(self) -> None:
        log = self._data.parent / "log"
        self._run("pg_ctl", "-D", self._data, "-w", "-t", "60", "-l", log, "-o", self._options, "start")

    def stop(self) -> None:
        """End all sessions at once and roll back their transactions."""
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "fast", "stop")

    def cpu_s(self) -> float:
        """CPU seconds of all processes of the server, those that have ended included."""
        import psutil  # comes with Dask

        postmaster = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        ended = postmaster.cpu_times()
        living = [process.cpu_times() for process in (postmaster, *postmaster.children(recursive=True))]
        return float(ended.children_user + ended.children_system + sum(times.user + times.system for times in living))

    def _run(self, name: str, *arguments: object) -> None:
        command = [str(self._binaries / name), *map(str, arguments)]
        groups: list[int] | None = [] if self._user else None
        done = subprocess.run(
            command, cwd="/", user=self._user, extra_groups=groups, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert done.returncode == 0, done.stderr.decode()


@contextmanager
def server(most: int = 40) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="tuner-postgres-", ignore_cleanup_errors=True) as folder:
        running = Server(Path(folder), most)
        try:
            yield running
        finally:
            with suppress(AssertionError):  # a test may have stopped it
                running.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _unprivileged() -> str | None:
    """Return the user to run as: PostgreSQL refuses to run as root."""
    if os.geteuid():
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class LossyProxy:
    """Forwards connections to a server. While `armed`, it drops the one with the next COMMIT before the answer."""

    def __init__(self, port: int) -> None:
        self._target, self.armed, self.lost = port, False, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as upstream:
            threading.Thread(target=_pump, args=(upstream, client), daemon=True).start()
            with suppress(OSError):
                while data := client.recv(1 << 16):
                    losing = self.armed and b"COMMIT" in data
                    if losing:
                        self.armed = False
                        client.shutdown(socket.SHUT_RDWR)  # before the server can answer
                    upstream.sendall(data)
                    if losing:
                        upstream.shutdown(socket.SHUT_WR)
                        while upstream.recv(1 << 16):  # until the server has committed and closed
                            pass
                        self.lost += 1
                        return


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def main(command: list[str]) -> int:
    if binaries() is None:
        print("skipped: no PostgreSQL server here (apt-get install postgresql)")
        return 0
    with server() as running:
        return subprocess.run(command, env=os.environ | {"TUNER_TEST_POSTGRES": running.database()}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
