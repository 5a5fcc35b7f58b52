"""Notebook kernels that need not import everything anew: forks of one process that has done so.

A kernel of its own spends six to ten seconds of processor time on importing torch, transformers and TransformerLens.
With `warm_kernels(folder)`, Jupyter finds a kernel `warm` beside `python3`, an ordinary ipykernel in every other way:

    python warm_kernels.py ADDRESS             the process with the imports, which forks a kernel for whoever asks
    python warm_kernels.py ADDRESS ARGUMENTS   what Jupyter starts: asks for a kernel and waits for its end

What the environment decides at an import (the number of threads, being offline) is decided by that of the tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORKS = sys.platform == "linux"
"""Elsewhere a process with the imports cannot be forked safely, and the tests keep to `python3`."""
NAME = "warm" if FORKS else "python3"
"""The kernel for tests to name."""
ASK, STAY = b"!", b"."
"""What a client says first: a kernel is wanted, or the process is to live as long as this connection."""


@contextlib.contextmanager
def warm_kernels(folder: Path) -> Iterator[None]:
    """Let Jupyter find the kernel `warm`, described in `folder`, for as long as the block runs.

    Processes that name the same folder share the process with the imports; it ends when the last of them has left.
    """
    if not FORKS:
        yield
        return
    file = folder / "kernels" / NAME / "kernel.json"
    before = os.environ.get("JUPYTER_PATH")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = joined(json.loads(file.read_text())["argv"][4]) if file.exists() else None
        if connection is None:
            address, connection = started()
            spec = {
                "argv": [sys.executable, "-I", "-S", __file__, address, "-f", "{connection_file}"],
                "display_name": "Warm",
                "language": "python",
                "interrupt_mode": "message",  # a signal would only reach what stands for the kernel
            }
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(spec))
    with connection:
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [str(folder), before]))
        try:
            yield
        finally:
            if before is None:
                del os.environ["JUPYTER_PATH"]
            else:
                os.environ["JUPYTER_PATH"] = before


def joined(address: str) -> socket.socket | None:
    """A connection that a process with the imports lives for; None if there is no such process any more."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
        connection.sendall(STAY)
        if connection.recv(1) == STAY:
            return connection
    except OSError:
        pass
    connection.close()
    return None


def started() -> tuple[str, socket.socket]:
    """The address of a new process with the imports, and a connection that it lives for."""
    from tests.waiting import until  # this file is a script of the standard library alone where it stands for a kernel

    address = f"{tempfile.mkdtemp()}/kernels"  # the address of a socket may have about a hundred letters
    process = subprocess.Popen([sys.executable, __file__, address], stdin=subprocess.DEVNULL, cwd=ROOT)
    connection = socket.socket(socket.AF_UNIX)

    def connected() -> bool:
        assert process.poll() is None, "the process that forks kernels has ended"
        return connection.connect_ex(address) == 0

    until(connected, "the start of the process that forks kernels")
    connection.sendall(STAY)
    return address, connection


def import_everything() -> None:
    """All that a notebook of the tests may need; nothing is computed, since threads do not live through a fork."""
    import accelerate  # noqa: F401
    import ipykernel.ipkernel
    import ipykernel.kernelapp  # noqa: F401
    import transformer_lens  # noqa: F401
    import transformers
    from transformer_lens.model_bridge.sources import build_bridge_from_module  # noqa: F401

    import interp_widgets
    from tests.steady import steady_forecasts

    for name in interp_widgets.__all__:
        getattr(interp_widgets, name)
    for name in ("AutoModelForCausalLM", "AutoTokenizer"):
        getattr(transformers, name)  # imported at first use
    steady_forecasts()
    assert threading.active_count() == 1
    gc.freeze()  # a collection of garbage in a kernel would otherwise copy all of it


def serve(address: str) -> None:
    """Fork a kernel for each client that asks for one, until those who stay have all left."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()  # who asks during the imports waits for their end
        sys.path[0] = str(ROOT)  # in the place of this file's folder
        os.environ["JPY_PARENT_PID"] = str(
            os.getpid()
        )  # read at the import of ipykernel: kernels end with this process
        import_everything()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # kernels that ended are not waited for
        staying: set[socket.socket] = set()
        while ready := select.select([listener, *staying], [], [], None if staying else 60)[0]:
            if listener in ready:
                client, _ = listener.accept()
                first, streams, _, _ = socket.recv_fds(client, 1, 3)
                if first == STAY:
                    client.sendall(STAY)
                    staying.add(client)
                    continue
                with client:
                    if first == ASK and os.fork() == 0:
                        listener.close()
                        become_kernel(client, streams)
                for stream in streams:
                    os.close(stream)
            else:  # who stays says nothing more: the connection has ended
                for client in staying.intersection(ready):
                    client.close()
                    staying.remove(client)
                if not staying:
                    break
    Path(address).unlink()
    Path(address).parent.rmdir()


def become_kernel(client: socket.socket, streams: list[int]) -> None:
    """Take over the client's arguments, environment, folder and standard streams, and run until either ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for own, theirs in enumerate(streams):
        os.dup2(theirs, own)
        os.close(theirs)
    asked = json.loads(client.makefile().readline())
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    threading.Thread(target=end_with, args=(client,), daemon=True).start()
    from ipykernel.kernelapp import launch_new_instance

    sys.argv = ["ipykernel_launcher", *asked["arguments"]]
    launch_new_instance()
    sys.exit()


def end_with(client: socket.socket) -> None:
    """Kill this kernel when what stands for it has gone."""
    client.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


def stand_for_a_kernel(address: str, arguments: list[str]) -> None:
    """Ask for a kernel, and wait until it has ended."""
    with socket.socket(socket.AF_UNIX) as kernel:
        kernel.connect(address)
        socket.send_fds(kernel, [ASK], [0, 1, 2])
        asked = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
        kernel.sendall(json.dumps(asked).encode() + b"\n")
        kernel.recv(1)


if __name__ == "__main__":
    if sys.argv[2:]:
        stand_for_a_kernel(sys.argv[1], sys.argv[2:])
    else:
        serve(sys.argv[1])
