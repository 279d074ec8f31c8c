"""The Dispatcher in every state that a pool, its reader and their faults can bring it to.

support/dispatcher_model.py says what is checked: each step comes once and in its order; what a pool loses is given
again, and no more than may be ahead or with a worker; a death is charged to what was being made; no wait is without an
end, and none while something could be given or delivered; after a break the rest is what is missing.

The settings have 166,499 states and 419,629 moves in all; the ten of `make test` have 7,096 and 15,885. The second half
plants mistakes: a search that cannot fail proves nothing.
"""

import pytest
from amounts import ranked
from dispatcher_model import Config, explore
from shm_model import Violation

from datapipes.chain.dispatcher import Dispatcher

# `make test` takes the first ten.
CONFIGS = {
    "nothing to do": Config(num_steps=0),
    "one at a time": Config(workers=1, num_steps=5, dropped=(0, 2), wrong=(4,)),
    "an event loop": Config(workers=1, tasks_each=2, at_once=2, most_ahead=4, num_steps=5, dropped=(1,), wrong=(3,)),
    "as they come": Config(in_order=False, num_steps=5, tasks_each=2, dropped=(1,), wrong=(3,), resets=1),
    "a death": Config(deaths=1, tasks_each=2, num_steps=5, dropped=(1,)),
    "a death of a worker of many": Config(deaths=1, tasks_each=2, at_once=2, max_restarts=1, closes=1, num_steps=3),
    "two deaths": Config(deaths=2, max_restarts=1),
    "a death, the pool fails": Config(deaths=1, max_restarts=1, failures=1, refusals=1, in_order=False),
    "servers": Config(
        goes_on=True, failures=2, refusals=1, tasks_each=2, dropped=(1,), wrong=(2,), closes=1, num_steps=5
    ),
    "several events in a call": Config(patience=3, deaths=1, max_restarts=1, dropped=(1,), num_steps=3),
    "a reset": Config(resets=2, dropped=(0,), in_order=False),
    "a death, a reset": Config(deaths=1, resets=1, max_restarts=1, tasks_each=2, num_steps=5, dropped=(1,)),
    "all at once": Config(deaths=1, twice=1, failures=1, refusals=1, closes=1, max_restarts=1, dropped=(1,)),
    "twice, a reset": Config(deaths=1, twice=1, resets=1, max_restarts=1, dropped=(1,)),
    "twice, a reset, as they come": Config(deaths=1, twice=1, resets=1, max_restarts=1, dropped=(1,), in_order=False),
    "two deaths of workers of many": Config(deaths=2, tasks_each=2, at_once=2, max_restarts=1),
    "two deaths, as they come": Config(deaths=2, tasks_each=2, max_restarts=1, num_steps=5, in_order=False, twice=1),
    "three deaths": Config(deaths=3, max_restarts=1, num_steps=3, tasks_each=2),
    "no second try": Config(deaths=1, resets=1, tasks_each=2, num_steps=5, wrong=(3,)),
    "servers, a reset": Config(
        goes_on=True, failures=1, refusals=1, resets=1, tasks_each=2, in_order=False, dropped=(1,), wrong=(2,)
    ),
    "servers, in order, a reset": Config(
        goes_on=True, failures=1, refusals=1, resets=1, tasks_each=2, dropped=(1,), wrong=(2,)
    ),
}


@pytest.mark.parametrize("config", ranked(CONFIGS.values(), 10), ids=CONFIGS)
def test_no_state_breaks_a_promise(config: Config, record_property) -> None:
    report = explore(config)
    record_property("states", report.states)
    assert report.ends > 0


# --- A dispatcher with one mistake


class ForgetsWhatTheDeadHad(Dispatcher):
    def _after_death(self, death):
        super()._after_death(death)
        self._again.clear()


class ForgetsWhatFailed(Dispatcher):
    def _wait(self, *limits):
        try:
            super()._wait(*limits)
        except BaseException:
            self._again.clear()
            raise


class TakesAnOutcomeTwice(Dispatcher):
    def _is_wanted(self, index):
        return True


class FormerLivesCount(Dispatcher):
    def _take(self, outcome):
        outcome.from_former_life = False
        super()._take(outcome)


class ChargesAllThatWasGiven(Dispatcher):
    def _after_death(self, death):
        tasks = tuple(task for task in self._pool.workers[death.worker].tasks if task not in death.tasks)
        super()._after_death(death._replace(tasks=death.tasks + tasks))


class NeverMovesOn(Dispatcher):
    def _settle(self, step):
        self._settled.add(step)


class MovesOnTooFar(Dispatcher):
    def _settle(self, step):
        super()._settle(step)
        self._low = max(self._low, step + 1)


class DeliversAsTheyCome(Dispatcher):
    def _ready(self):
        self._in_order = False
        return super()._ready()


MISTAKES = [
    (ForgetsWhatTheDeadHad, CONFIGS["two deaths"], "no worker has a task|could have given"),
    (FormerLivesCount, CONFIGS["two deaths of workers of many"], "they have"),
    (MovesOnTooFar, CONFIGS["as they come"], "the first that is missing is|it ended, and has only"),
    (ForgetsWhatFailed, CONFIGS["servers"], "no worker has a task|could have given"),
    (TakesAnOutcomeTwice, Config(twice=1, in_order=False), "delivered twice|after it had come|it has"),
    (ChargesAllThatWasGiven, CONFIGS["a death"], "it raised PeerDied"),
    (NeverMovesOn, CONFIGS["one at a time"], "no worker has a task"),
    (DeliversAsTheyCome, CONFIGS["an event loop"], "the next is"),
]


@pytest.mark.full
@pytest.mark.parametrize(("broken", "config", "what"), MISTAKES, ids=[broken.__name__ for broken, _, _ in MISTAKES])
def test_the_search_finds_each_mistake(broken: type[Dispatcher], config: Config, what: str) -> None:
    with pytest.raises(Violation, match=what):
        explore(config, broken)
