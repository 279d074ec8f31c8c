"""The recipes of docs/training-loops.md: trainer epoch n is loader epoch n, and a run that was killed goes on with the
minibatch after its last checkpoint and ends with the weights of one that was left alone.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import recipes
from amounts import ranked
from recipes import Journal, Recipes

import datapipes as dp

EPOCHS = 3
STEPS = 6  # minibatches an epoch
TWO_WORKERS = {"num_workers": 2, "multiprocessing_context": "fork"}
BY_STEPS = {"every_n_train_steps": 4}
# Lightning is imported for as long as fifty runs take, and accelerate for twenty.
OF_OTHERS = {recipe: [pytest.mark.full] for recipe in recipes.NEEDS}
CALLS = {  # how a test calls each recipe: the place of its checkpoints, and what else it needs
    "train": ("checkpoint.pt", {}),
    "fit": ("checkpoints", {"checkpoint": BY_STEPS}),
    "train_with_accelerate": ("checkpoints", {}),
    "train_rank": ("checkpoint.pt", {"ranks": 2}),
}


@pytest.fixture(scope="module")
def runs() -> Iterator[Recipes]:
    runs = Recipes()
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def alone(runs, tmp_path_factory):
    """`alone(recipe)` is the journal of a run that nobody disturbed; each recipe makes it once."""

    @cache
    def journal(recipe: str) -> Journal:
        return ended_well(start(runs, recipe, tmp_path_factory.mktemp(recipe)))

    return journal


def start(runs: Recipes, recipe: str, folder: Path, **order) -> Journal:
    if not recipes.is_there(recipe):
        pytest.skip(f"{recipe} needs {recipes.NEEDS[recipe]}, which is not installed")
    place, needs = CALLS[recipe]
    options = {"num_epochs": EPOCHS, **order.pop("options", {})}
    return runs.run(recipe, folder, place, options=options, **{**needs, **order})


def ended_well(journal: Journal) -> Journal:
    assert journal.status == 0, journal.errors
    assert "Traceback" not in journal.errors
    return journal


def was_killed(journal: Journal) -> Journal:
    assert journal.weights is None
    assert journal.status == -9, journal.errors
    return journal


@cache
def loader() -> dp.DataLoader:
    return recipes.program_of()["make_loader"]()


@cache
def minibatches(first: int = 0, last: int = EPOCHS * STEPS) -> list[tuple[int, int, str]]:
    """What the loader gives in epochs 0, 1, 2, counted through: epoch, index and digest."""
    places = [divmod(number, STEPS) for number in range(first, last)]
    return [(epoch, index, loader().minibatch(epoch, index).digest()) for epoch, index in places]


def without_ranks(entries) -> list[tuple[int, int, str]]:
    return [tuple(entry[1:]) for entry in entries]


def test_the_page_has_the_loader_that_the_tests_count_on():
    assert len(loader()) == STEPS


@pytest.mark.parametrize("recipe", [pytest.param(recipe, marks=OF_OTHERS.get(recipe, ())) for recipe in CALLS])
def test_trainer_epoch_n_is_loader_epoch_n(alone, recipe):  # the recipes themselves assert it; this says which it is
    trained = without_ranks(alone(recipe).trained)
    assert (sorted(trained) if recipe == "train_rank" else trained) == minibatches()


@pytest.mark.full
def test_validation_in_trainer_epoch_n_is_epoch_n_of_its_loader(alone):
    assert without_ranks(alone("fit").validated) == minibatches(0, 2) + minibatches()  # the sanity check reads two


# --- killed, and started again. Checkpoints lie after 4 minibatches of an epoch and at its end; Lightning's after
# 4, 8 and 12 of all


@pytest.mark.parametrize(
    ("recipe", "kill_after", "checkpoint"),
    ranked(
        [
            ("train", 11, 10),
            ("train", 13, 12),
            ("fit", 13, 12),
            ("fit", 11, 8),
            ("train_with_accelerate", 11, 10),
            ("train_with_accelerate", 13, 12),
        ],
        1,
    ),
)
def test_a_killed_run_goes_on_after_its_last_checkpoint(runs, alone, tmp_path, recipe, kill_after, checkpoint):
    killed = was_killed(start(runs, recipe, tmp_path, kill_after=kill_after))
    assert without_ranks(killed.trained) == minibatches(0, kill_after)
    options = TWO_WORKERS if kill_after == 11 else {}  # their number may change
    resumed = ended_well(start(runs, recipe, tmp_path, options=options))
    assert without_ranks(resumed.trained) == minibatches(checkpoint)
    assert resumed.weights == alone(recipe).weights


def test_a_plain_loop_goes_on_from_a_checkpoint_of_the_last_minibatch(runs, tmp_path):
    settings = {"BATCH_SIZE": 36}  # four minibatches: the checkpoint after the fourth is made before the epoch ends
    whole = ended_well(start(runs, "train", tmp_path / "alone", settings=settings))
    killed = was_killed(start(runs, "train", tmp_path / "killed", settings=settings, kill_in="save", kill_after=1))
    assert killed.trained == whole.trained[:4]
    resumed = ended_well(start(runs, "train", tmp_path / "killed", settings=settings))
    assert resumed.trained == whole.trained[4:]
    assert resumed.weights == whole.weights


@pytest.mark.full
@pytest.mark.parametrize(
    ("checkpoint", "options"),
    [
        ({}, {}),
        ({"every_n_train_steps": STEPS}, {"max_steps": EPOCHS * STEPS}),
        ({}, {"num_epochs": -1, "max_steps": EPOCHS * STEPS}),
        ({"every_n_train_steps": STEPS}, {}),
        ({"save_on_train_epoch_end": False}, {}),
        ({"save_on_train_epoch_end": False}, {"max_steps": EPOCHS * STEPS}),
    ],
    ids=str,
)
def test_lightning_goes_on_from_every_kind_of_checkpoint_at_an_epochs_end(runs, alone, tmp_path, checkpoint, options):
    order = {"checkpoint": checkpoint, "options": options}
    was_killed(start(runs, "fit", tmp_path, kill_after=14, **order))
    resumed = ended_well(start(runs, "fit", tmp_path, **order))
    assert without_ranks(resumed.trained) == minibatches(12)
    assert without_ranks(resumed.validated)[-STEPS:] == minibatches(12)
    assert resumed.weights == alone("fit").weights


# --- ranks. Rank 0 makes checkpoints after the first step of an epoch, the third, and at its end

KILL_RANK_1 = {"kill_after": 6}  # in the third step of epoch 1, when rank 0 waits for its gradients
RANK_CHECKPOINT = STEPS + 2


def of_rank(journal: Journal, rank: int) -> list[tuple[int, int, str]]:
    return without_ranks(entry for entry in journal.trained if entry[0] == rank)


@pytest.mark.parametrize("by_torchrun", ranked([False, True], 1), ids=["forked", "torchrun"])
def test_both_ranks_start_again_when_one_was_killed(runs, alone, tmp_path, by_torchrun):
    order = {"ranks": 2, "restarts": 1, **KILL_RANK_1}
    if by_torchrun:
        job = recipes.torchrun(tmp_path, "checkpoint.pt", options={"num_epochs": EPOCHS}, **order)
    else:
        job = start(runs, "train_rank", tmp_path, **order)
    assert job.status == 0, job.errors
    ranks = [minibatches()[rank::2] for rank in (0, 1)]
    rest = [minibatches(RANK_CHECKPOINT)[rank::2] for rank in (0, 1)]
    assert of_rank(job, 1) == ranks[1][:6] + rest[1]
    assert of_rank(job, 0)[-5:] == rest[0]
    assert of_rank(job, 0)[:-5] in (ranks[0][:5], ranks[0][:6])  # it may have got no further than to its sixth
    assert job.weights == alone("train_rank").weights


def test_a_job_of_two_ranks_goes_on_with_one(runs, tmp_path):
    killed = start(runs, "train_rank", tmp_path, **KILL_RANK_1)
    assert killed.status == 1, killed.errors
    assert of_rank(killed, 1) == minibatches()[1::2][:6]
    resumed = ended_well(start(runs, "train_rank", tmp_path, ranks=1))
    assert without_ranks(resumed.trained) == minibatches(RANK_CHECKPOINT)


@pytest.mark.full
def test_accelerate_runs_on_two_ranks(runs, tmp_path):
    job = ended_well(start(runs, "train_with_accelerate", tmp_path, ranks=2))
    assert [of_rank(job, rank) for rank in (0, 1)] == [minibatches()[rank::2] for rank in (0, 1)]
