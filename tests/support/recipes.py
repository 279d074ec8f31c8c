"""Recipes of docs/training-loops.md, each run in a process that is forked from one that has imported all they need.

Importing Lightning takes as long as fifty runs of a recipe, so `Recipes` starts one interpreter for all of them. It
waits for orders, imports what the recipe of an order needs, and forks for each. A run writes a journal: a line for each
minibatch that a recipe computes a loss of, and one for the weights at the end. An order may say after which minibatch
the run kills itself.
"""

import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

PAGE = Path(__file__).parents[2] / "docs" / "training-loops.md"
SECTIONS = {"train": (), "fit": ("Lightning",), "train_with_accelerate": ("accelerate",), "train_rank": ("torchrun",)}
NEEDS = {"fit": "pytorch_lightning", "train_with_accelerate": "accelerate"}
BOUND_S = 120.0  # longest time of a run; it takes about a second


class Journal(NamedTuple):
    """What a run did.

    Attributes:
        status: its exit status, or minus the signal that ended it.
        errors: what it wrote to stderr.
        trained, validated: (rank, epoch, index, digest) of each minibatch, in the order in which losses were computed.
        weights: a digest of the model at the end; None if the run was killed before.
    """

    status: int
    errors: str
    trained: list[tuple[int, int, int, str]]
    validated: list[tuple[int, int, int, str]]
    weights: str | None


def is_there(function: str) -> bool:
    """Whether the package that a recipe needs is installed."""
    return function not in NEEDS or importlib.util.find_spec(NEEDS[function]) is not None


class Recipes:
    """The interpreter that forks the runs, seen from the tests."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def run(self, function: str, folder: Path, *arguments: Any, **order: Any) -> Journal:
        """Call a function of the page in `folder`, in a process of its own.

        Of the order: `options` are keyword arguments of the function; `settings` replace constants of the page;
        `kill_after` is the number of calls of `loss_of`, or of what `kill_in` names, after which the run kills itself;
        `ranks` is how many to start, of which rank 1 alone is killed, and `restarts` is how often they may start again
        when one has failed; `checkpoint` describes a ModelCheckpoint, the second argument of `fit`.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        line = order_for(function, folder, *arguments, **order)
        self._child.stdin.write(json.dumps(line) + "\n")
        self._child.stdin.flush()
        answer = json.loads(self._child.stdout.readline())
        return journal_of(line, answer["status"], answer["errors"])

    def close(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.kill()  # it holds nothing, and its orderly end takes seconds
        self._child.wait(BOUND_S)
        self._child.stdin.close()
        self._child.stdout.close()


def order_for(function: str, folder: Path, *arguments: Any, **order: Any) -> dict[str, Any]:
    """Return an order as `Recipes.run` describes it, with a new journal in `folder`."""
    folder.mkdir(exist_ok=True)
    journal = folder / f"journal{len(list(folder.glob('journal*')))}"
    journal.touch()
    return {"function": function, "folder": str(folder), "journal": str(journal), "arguments": arguments, **order}


def journal_of(order: dict[str, Any], status: int, errors: str) -> Journal:
    """Return what the run of an order has written, and how it ended."""
    entries = [json.loads(entry) for entry in Path(order["journal"]).read_text().splitlines()]
    weights = [entry["weights"] for entry in entries if "weights" in entry]
    assert len(set(weights)) <= 1, "the ranks ended with different weights"
    return Journal(
        status,
        errors,
        [tuple(entry["trained"]) for entry in entries if "trained" in entry],
        [tuple(entry["validated"]) for entry in entries if "validated" in entry],
        weights[0] if weights else None,
    )


def torchrun(folder: Path, *arguments: Any, ranks: int, restarts: int, **order: Any) -> Journal:
    """Run `train_rank` by the real torchrun, which starts an interpreter for each rank."""
    line = order_for("train_rank", folder, *arguments, **order)
    (folder / "order.json").write_text(json.dumps(line))
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}", __file__, str(folder / "order.json")]
    # Else torch 2.13 finds the addresses of the ranks that have ended; the page says so.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=BOUND_S)
    return journal_of(line, done.returncode, done.stderr)


# --- in the interpreter that forks


def program_of(*sections: str) -> dict[str, Any]:
    """Return the names that the page defines before its first section, in "A plain loop", and in `sections`."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(PAGE.read_text(encoding="utf-8"))
    wanted, title, program = {"Training loops", "A plain loop", *sections}, "", []
    for before, token in itertools.pairwise(tokens):
        if before.type == "heading_open":
            title = token.content
        if token.type == "fence" and title in wanted:
            program.append(token.content)
    page: dict[str, Any] = {"__name__": "page"}
    exec("\n".join(program), page)
    return page


def serve() -> None:
    """Run orders from stdin, one after the other. What the first order of a recipe imports serves all later ones."""
    warm = set()
    for line in sys.stdin:
        order = json.loads(line)
        if order["function"] not in warm:
            warm_up(program_of(*SECTIONS[order["function"]]))
            warm.add(order["function"])
        stderr = Path(order["journal"] + ".stderr")
        child = os.fork()
        if child == 0:
            and_exit(carry_out, order, stderr)
        answer = {"status": wait_for(child), "errors": stderr.read_text()}
        print(json.dumps(answer), flush=True)


def warm_up(page: dict[str, Any]) -> None:
    """Make an optimizer: the first one imports much. Nothing may run backward here, since autograd does not fork."""
    import torch

    torch.optim.Adam(page["GraphSAGE"]().parameters())


def wait_for(child: int) -> int:
    """Return how a child ended; kill it and all that it started when it takes too long."""
    pidfd = os.pidfd_open(child)
    try:
        select.select([pidfd], [], [], BOUND_S)
    finally:
        os.close(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # it leads a session; what it left behind goes too
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def and_exit(function: Callable[..., Any], *arguments: Any) -> NoReturn:
    """Call a function and end this forked process; what it returned lives to the end, as the page asks for."""
    status = 1
    try:
        kept = function(*arguments)  # noqa: F841
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def carry_out(order: dict[str, Any], stderr: Path) -> None:
    os.setsid()
    sink = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(order["folder"])
    (launch if "ranks" in order else run)(order)


def run(order: dict[str, Any]) -> Any:
    """Call the recipe in this process, write its journal and return its model."""
    page = program_of(*SECTIONS[order["function"]])
    page.update(order.get("settings", {}))
    journal = os.open(order["journal"], os.O_WRONLY | os.O_APPEND)
    keep_journal(page, journal)
    if "kill_after" in order:
        kill_after_calls(page, order.get("kill_in", "loss_of"), order["kill_after"])
    arguments = order["arguments"]
    if "checkpoint" in order:
        import pytorch_lightning

        checkpoint = pytorch_lightning.callbacks.ModelCheckpoint(arguments[0], save_top_k=-1, **order["checkpoint"])
        arguments = [arguments[0], checkpoint, *arguments[1:]]
    model = page[order["function"]](*arguments, **order.get("options", {}))
    write(journal, weights=digest_of_weights(model))
    return model


def keep_journal(page: dict[str, Any], journal: int) -> None:
    """Write down each minibatch that a loss is computed of."""
    import torch

    loss_of, rank = page["loss_of"], int(os.environ.get("RANK", "0"))

    def written(model: Any, minibatch: Any) -> Any:
        kind = "trained" if torch.is_grad_enabled() else "validated"
        write(journal, **{kind: (rank, minibatch.epoch, minibatch.index, minibatch.digest())})
        return loss_of(model, minibatch)

    page["loss_of"] = written


def kill_after_calls(page: dict[str, Any], name: str, number: int) -> None:
    """Kill this process after so many calls of a function of the page, those in validation not counted.

    Of several ranks that is rank 1, in its first life.
    """
    import torch

    if os.environ.get("RANK", "1") != "1" or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return
    called, calls = page[name], itertools.count(1)

    def deadly(*arguments: Any) -> Any:
        result = called(*arguments)
        if torch.is_grad_enabled() and next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    page[name] = deadly


def write(journal: int, **entry: Any) -> None:
    os.write(journal, (json.dumps(entry) + "\n").encode())  # one write: ranks share the file


def digest_of_weights(model: Any) -> str:
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        state.update(name.encode() + tensor.numpy().tobytes())
    return state.hexdigest()


def launch(order: dict[str, Any]) -> None:
    """Run the ranks as torchrun does: one process each, told by its environment; when one fails, all end or all start
    again. (Its agent has threads, so it cannot fork; and a fresh interpreter for each rank would take as long as all
    other tests of this page.)
    """
    for life in range(1 + order.get("restarts", 0)):
        with socket.create_server(("localhost", 0)) as free:
            port = free.getsockname()[1]
        ranks = [start_rank(order, rank, life, port) for rank in range(order["ranks"])]
        failed = False
        for _ in ranks:
            failed |= os.wait()[1] != 0
            if failed:
                for rank in ranks:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rank, signal.SIGKILL)
        if not failed:
            return
    raise RuntimeError("a rank failed")


def start_rank(order: dict[str, Any], rank: int, life: int, port: int) -> int:
    """Fork a rank and return its process id."""
    child = os.fork()
    if child == 0:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(order["ranks"]),
            MASTER_ADDR="localhost",
            MASTER_PORT=str(port),
            TORCHELASTIC_RESTART_COUNT=str(life),
        )
        and_exit(run, order)
    return child


if __name__ == "__main__":
    if len(sys.argv) > 1:  # a rank that torchrun has started
        and_exit(run, json.loads(Path(sys.argv[1]).read_text()))
    serve()
