"""Deaths of a pool's workers. A death is charged to the minibatches that the worker was making, or to the start of the
worker. Too many deaths charged to one minibatch, or to one start, end the epoch.

The death of a waiting worker is charged to nothing, however often it happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from datapipes.base.errors import PeerDied
from datapipes.base.log import logger
from datapipes.chain.pool import Death, Task, in_words


class Deaths:
    """Counts the deaths of the workers of a pool.

    Args:
        where: the owner of the workers, for errors and the log.
        most: deaths that one minibatch survives; also consecutive deaths that the start of one worker survives.
        to_try: text with {index} and {epoch} in it: how to try the stages on that minibatch, and other remedies.
        to_start: a remedy if workers cannot start.
    """

    def __init__(self, where: str, most: int, to_try: str, to_start: str = "") -> None:
        self._where, self._most, self._to_try, self._to_start = where, most, to_try, to_start
        self._of_tasks: dict[tuple[int, int], list[Death]] = {}  # {(epoch, index): deaths while it was made}
        self._at_start: Counter[int] = Counter()  # consecutive deaths since the last outcome, by worker

    def forget(self, task: Task) -> None:
        """Forget the deaths of workers that were making the minibatch of `task`, and of all workers that died while
        they started. Called when `task` has an outcome.
        """
        self._at_start.clear()
        self._of_tasks.pop((task.epoch, task.index), None)

    def error_after(self, death: Death, charged: Sequence[Task]) -> PeerDied | None:
        """Charge a death. Return the error if too many deaths are charged to a minibatch or to the start of a worker.
        Otherwise log that another worker replaces the dead one, and return None.

        Args:
            charged: the tasks of `death.tasks` whose outcome is still wanted.
        """
        for task in charged:
            self._of_tasks.setdefault((task.epoch, task.index), []).append(death)
        if too_often := [task for task in charged if len(self._of_tasks[task.epoch, task.index]) > self._most]:
            return self._died_too_often(too_often, death)
        if not death.was_ready:
            self._at_start[death.worker] += 1
            if not death.by_signal or self._at_start[death.worker] > self._most:
                return PeerDied(
                    f"{self._where}: worker {death.worker} (pid {death.pid}) died while it started: {death.how}. Read "
                    f"its output on stderr. A script must start workers below `if __name__ == '__main__':`."
                    f"{self._to_start}",
                    [death.pid],
                )
        doing = f"was making {in_words(death.tasks)}" if death.tasks else "was idle"
        logger.warning(
            "%s: worker %d (pid %d) died: %s. It %s; another takes its place, and nothing is lost.",
            self._where,
            death.worker,
            death.pid,
            death.how,
            doing if death.was_ready else "was starting",
        )
        return None

    def _died_too_often(self, tasks: list[Task], last: Death) -> PeerDied:
        """Return the error for `tasks`, the oldest first: too many workers died while they made each of them."""
        epoch, index = tasks[0].epoch, tasks[0].index
        deaths = self._of_tasks[epoch, index]
        others = ", ".join(str(task.index) for task in tasks[1:])
        return PeerDied(
            f"{self._where}: {len(deaths)} workers died while they made minibatch {index} of epoch {epoch}"
            f"{f', each time together with minibatch {others}' if others else ''}; the last was worker {last.worker} "
            f"(pid {last.pid}): {last.how}. Try the stages on "
            f"{'each of these minibatches' if others else 'this minibatch'} "
            f"{self._to_try.format(epoch=epoch, index=index)}.",
            [death.pid for death in deaths],
        )
