"""When a server that is out of files must be restarted. Its /proc folder is made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from bistream.keeper.file_watch import LOOK_INTERVAL_S, LOOKS_BEFORE_FAILURE, FileWatch

LIMIT = 10
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"


class Server:
    """A process with ``live`` sockets (TCP, and one of Unix) and ``left`` ones whose clients have gone, seen through a watch."""

    def __init__(self, proc: Path) -> None:
        self.folder = proc / "7"
        (self.folder / "net").mkdir(parents=True)
        (self.folder / "limits").write_text(
            f"Limit  Soft Limit  Hard Limit  Units\nMax open files   {LIMIT}   99   files\n", encoding="ascii"
        )
        self.now = 0.0
        self.has(0, 0)
        self.watch = FileWatch(7, lambda: self.now, proc)

    def has(self, live: int, left: int) -> None:
        fd = self.folder / "fd"
        fd.mkdir(exist_ok=True)
        for path in fd.iterdir():
            path.unlink()
        rows: dict[str, list[str]] = {"tcp": [HEADER], "tcp6": [HEADER], "unix": ["Num  RefCount Protocol Flags  Type St Inode Path"]}
        for number in range(live + left):
            state = "01" if number < live else "08"
            row = f"0: 0100007F:1 0100007F:2 {state} 0:0 00:0 0 0 0 {100 + number} 1 0"
            if number == 0 and live:
                rows["unix"].append(f"0000: 00000003 00000000 00000000 0001 03 {100 + number}")
            elif number != live:  # the first one that was left is closed on both sides: in no table
                rows["tcp" if number % 2 else "tcp6"].append(row)
            (fd / str(number)).symlink_to(f"socket:[{100 + number}]")
        for name, lines in rows.items():
            (self.folder / "net" / name).write_text("\n".join(lines) + "\n", encoding="ascii")

    def looks(self, count: int) -> list[str | None]:
        reasons = []
        for _ in range(count):
            reasons.append(self.watch.failure())
            self.now += LOOK_INTERVAL_S
        return reasons


def test_files_held_for_clients_that_have_left_are_a_failure_after_a_while(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.has(live=2, left=8)
    *before, last = server.looks(LOOKS_BEFORE_FAILURE)
    assert before == [None] * (LOOKS_BEFORE_FAILURE - 1)
    assert last is not None and "8 of its 10 files" in last


@pytest.mark.parametrize(("live", "left"), [(10, 0), (6, 4), (1, 8), (0, 0)])
def test_live_connections_and_free_files_are_not(tmp_path: Path, live: int, left: int) -> None:
    server = Server(tmp_path)
    server.has(live, left)
    assert server.looks(3 * LOOKS_BEFORE_FAILURE) == [None] * (3 * LOOKS_BEFORE_FAILURE)


def test_what_passes_is_forgotten(tmp_path: Path) -> None:
    server = Server(tmp_path)
    for _ in range(3):
        server.has(live=0, left=10)
        assert server.looks(LOOKS_BEFORE_FAILURE - 1) == [None] * (LOOKS_BEFORE_FAILURE - 1)
        server.has(live=0, left=0)
        assert server.looks(1) == [None]


def test_it_looks_no_more_often_than_it_says(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.has(live=0, left=10)
    assert [server.watch.failure() for _ in range(10 * LOOKS_BEFORE_FAILURE)] == [None] * (10 * LOOKS_BEFORE_FAILURE)


def test_a_shortage_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(tmp_path)
    for _ in range(2):
        server.has(live=8, left=0)
        server.looks(5)
        server.has(live=0, left=0)
        server.looks(1)
    assert [message.startswith("the server has 8 of 10 files open, 0 of them") for message in caplog.messages] == [True, True]


def test_a_server_that_has_ended_is_no_failure_of_its_files(tmp_path: Path) -> None:
    assert FileWatch(8, lambda: 0.0, tmp_path).failure() is None
