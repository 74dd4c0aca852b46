"""A tiny process between us and a server that forks, so that none of its processes outlives us.

What `warden.py` is to a JVM, for a family: PostgreSQL has a process for each client, and one that
is busy goes on for as long as its statement takes, though its postmaster was killed. `family.py`
starts this as a script of its own (standard library only) and writes to its standard input: each
byte is the number of a signal, and the end means that we are gone, be it by `kill -9`. Answers go
to standard output: `pid 123` at first, then `stopped` or `late`, and `continued`.

SIGKILL, SIGSTOP and SIGCONT are for all processes of the family, other signals for its head. On
Linux those who lost their parent become children of ours, so nobody gets away.

Usage: guard.py OUTPUT_FILE SCRATCH_FOLDER_OR_EMPTY USER_ID GROUP_ID COMMAND...
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# The pipe alone isn't proof enough: a process that we forked may still hold its other end.
_PARENT_CHECK_S = 0.5
_FREEZE_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.005

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IPC_RMID = 0
_LIBC = ctypes.CDLL(None)
_IS_LINUX = sys.platform == "linux"


def main(output_file: str, scratch: str, uid: int, gid: int, command: list[str]) -> int:
    parent_pid = os.getppid()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only to make the wake-up pipe readable
    signal.set_wakeup_fd(wake_write)
    if _IS_LINUX:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    head = _start(command, Path(output_file), uid, gid)
    _answer(f"pid {head.pid}")
    we_are_gone = False
    while (exit_code := _reap(head.pid)) is None:
        readable, _, _ = select.select([0, wake_read], [], [], _PARENT_CHECK_S)
        if wake_read in readable:
            os.read(wake_read, 4096)
        order = os.read(0, 1) if 0 in readable else None
        we_are_gone = order == b"" or os.getppid() != parent_pid
        if we_are_gone:
            _kill(head.pid)
            break
        if order:
            _obey(signal.Signals(order[0]), head.pid)
    _end_orphans()
    if we_are_gone and scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    os.seteuid(uid)  # shared memory is removed by its owner; root may not have the right
    _drop_shared_memory(head.pid)
    return 0 if exit_code == 0 else 1


def _start(command: list[str], output_file: Path, uid: int, gid: int) -> subprocess.Popen[bytes]:
    guard_pid = os.getpid()

    def die_with_guard() -> None:  # runs as the new user: a change of user would undo it
        if _IS_LINUX:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard_pid:  # it died before the line above took hold
                os.kill(os.getpid(), signal.SIGKILL)

    with output_file.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=output_file.parent,
            user=uid,
            group=gid,
            extra_groups=[] if uid != os.geteuid() else None,
            preexec_fn=die_with_guard,
        )


def _obey(order: signal.Signals, head: int) -> None:
    if order is signal.SIGKILL:
        _kill(head)
    elif order is signal.SIGSTOP:
        _, all_stopped = _freeze(head)
        _answer("stopped" if all_stopped else "late")
    elif order is signal.SIGCONT:
        for pid, parent, _ in _processes():
            if head in (pid, parent):
                os.kill(pid, signal.SIGCONT)
        _answer("continued")
    else:
        os.kill(head, order)


def _kill(head: int) -> None:
    """As a power cut: first they all stand still, then they are gone."""
    family, _ = _freeze(head)
    for pid in family:
        os.kill(pid, signal.SIGKILL)


def _freeze(head: int) -> tuple[list[int], bool]:
    """Stop the family: who they are, and whether they all stand still."""
    deadline = time.monotonic() + _FREEZE_TIMEOUT_S
    while True:
        states = {pid: state for pid, parent, state in _processes() if head in (pid, parent)}
        moving = [pid for pid, state in states.items() if state not in "TtZX"]
        if not moving or time.monotonic() > deadline:
            return list(states), not moving
        # The head first: once it stands still it forks no more, and as it doesn't bury its dead
        # either, no process id below it can pass to a stranger.
        for pid in [head] if head in moving else moving:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(_POLL_INTERVAL_S)


def _reap(head: int) -> int | None:
    """Bury whoever died; the exit code of the head if it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == head:
            return os.waitstatus_to_exitcode(status)
        if pid == 0:
            return None


def _end_orphans() -> None:
    """Wait for all that is left of the family, having killed it."""
    while True:
        for pid, parent, _ in _processes():
            if parent == os.getpid():
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _processes() -> Iterator[tuple[int, int, str]]:
    """Process id, parent and state (a letter) of all processes of this machine."""
    if not _IS_LINUX:
        with subprocess.Popen(
            ["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True
        ) as listing:
            lines = listing.communicate()[0].splitlines()
        for pid, parent, state in map(str.split, lines):
            if int(pid) != listing.pid:
                yield int(pid), int(parent), state[0]
        return
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
                # "123 (name, may hold anything) S 122 ..."
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                yield int(entry.name), int(parent), state


def _drop_shared_memory(head: int) -> None:
    """Remove the segments of a server that was killed: they would stay until the next boot."""
    table = Path("/proc/sysvipc/shm")
    for line in table.read_text().splitlines()[1:] if table.exists() else ():
        _, segment, _, _, creator, _, attached, *_ = line.split()
        if int(creator) == head and attached == "0":
            _LIBC.shmctl(int(segment), _IPC_RMID, None)


def _answer(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody is left to read it
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]))
