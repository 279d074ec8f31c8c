"""The board: what a worker writes about its tasks, and what the pool reads of it."""

from datapipes.chain.pool import Task
from datapipes.loader.workers.board import Board, OwnRow

FIRST, SECOND, THIRD = Task(1, 0, 7), Task(1, 0, 8), Task(2, 5, 2**62)


def rows(tasks_each: int) -> tuple[Board, OwnRow]:
    board = Board(3, tasks_each)
    return board, OwnRow(board.packed, 1)


def test_a_row_names_the_tasks_that_are_being_made_the_oldest_first():
    board, own = rows(3)
    assert board.row(1) == ((), 0.0, False)
    own.ready()
    for task in (FIRST, SECOND, THIRD):
        own.begin(task)
    assert board.row(1).tasks == (FIRST, SECOND, THIRD)
    own.end(FIRST)
    own.begin(FIRST)  # it takes the place of its own, and is the youngest
    tasks, seconds, is_ready = board.row(1)
    assert (tasks, is_ready) == ((SECOND, THIRD, FIRST), True)
    assert 0 <= seconds < 60
    assert board.row(0) == board.row(2) == ((), 0.0, False)


def test_a_task_may_be_ended_again():
    board, own = rows(2)
    own.begin(FIRST)
    own.end(FIRST)
    own.end(FIRST)
    own.end(SECOND)
    own.begin(SECOND)
    own.begin(THIRD)
    assert board.row(1).tasks == (SECOND, THIRD)


def test_an_entry_that_is_half_written_names_no_task():
    board, own = rows(2)
    own.begin(FIRST)
    board._rows[1, 8:11] = 5  # a worker that was killed in the middle: all but the last number
    assert board.row(1).tasks == (FIRST,)


def test_a_row_is_cleared_for_the_next_worker():
    board, own = rows(2)
    own.ready()
    own.begin(FIRST)
    board.clear(1)
    assert board.row(1) == ((), 0.0, False)


def test_a_worker_that_makes_one_minibatch_at_a_time_has_one_cache_line():
    assert [Board(3, tasks_each)._rows.shape[1] for tasks_each in (1, 2, 10)] == [8, 16, 48]
