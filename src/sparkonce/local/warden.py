"""A tiny process between us and a JVM, so that no JVM outlives us, however we died.

It stands below `jvm.py`, which starts it as a script of its own (standard library only). Its
standard input is a pipe from us: each byte is the number of a signal to hand on, and its end means
that we are gone, be it by `kill -9`. It is the JVM's parent, so a signal never meets a process id
that was given to somebody else. What becomes of the JVM goes to standard output, a word a line:
`pid 123`, `stopped`, `continued`, `exited 143`.

Usage: warden.py OUTPUT_FILE SCRATCH_FOLDER_OR_EMPTY COMMAND...
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

# The pipe alone isn't proof enough: a process that we forked may still hold its other end.
_PARENT_CHECK_S = 0.5
_PR_SET_PDEATHSIG = 1


def main(output_file: str, scratch_folder: str, command: list[str]) -> int:
    parent_pid = os.getppid()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only to make the wake-up pipe readable
    signal.set_wakeup_fd(wake_write)
    jvm_pid = _start(command, output_file)
    _report(f"pid {jvm_pid}")
    while True:
        readable, _, _ = select.select([0, wake_read], [], [], _PARENT_CHECK_S)
        if wake_read in readable:
            os.read(wake_read, 4096)
            if _report_changes(jvm_pid):
                return 0
        if 0 in readable:
            order = os.read(0, 1)
            if not order:
                break
            os.kill(jvm_pid, order[0])
        if os.getppid() != parent_pid:
            break
    os.kill(jvm_pid, signal.SIGKILL)
    os.waitpid(jvm_pid, 0)
    if scratch_folder:
        # Wardens of other brokers do the same; whoever comes last finds nothing more written to.
        shutil.rmtree(scratch_folder, ignore_errors=True)
    return 0


def _start(command: list[str], output_file: str) -> int:
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    warden_pid = os.getpid()

    def die_with_warden() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != warden_pid:  # it died before the line above took hold
                os.kill(os.getpid(), signal.SIGKILL)

    with open(output_file, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_warden,
        ).pid


def _report_changes(jvm_pid: int) -> bool:
    """Report all that happened to the JVM; True once it is gone."""
    while True:
        pid, status = os.waitpid(jvm_pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        if pid == 0:
            return False
        if os.WIFSTOPPED(status):
            _report("stopped")
        elif os.WIFCONTINUED(status):
            _report("continued")
        else:
            _report(f"exited {os.waitstatus_to_exitcode(status)}")
            return True


def _report(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody is left to read it
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
