# SPDX-License-Identifier: Apache-2.0
"""What horovod-data-run decides after the end of an attempt."""

import signal

import pytest

from horovod_data.launcher.hosts import Host
from horovod_data.launcher.main import given_name
from horovod_data.launcher.restarts import (
    LEFT_OUT_SECONDS,
    Again,
    Ended,
    Failure,
    Lost,
    Policy,
    Stop,
    Way,
    choose_hosts,
    decide,
    reason,
    way_of,
)  # fmt: skip
from horovod_data.launcher.supervisor import signals_to_leave

POLICY = Policy(np=4, min_np=3, max_restarts=3, window=100.0, leave_status=75)
ERROR = Failure("rank 1 on a", 1, "ValueError: no such file")
FOLLOWS = Failure("rank 0 on a", 1, "InternalError: rank 1 on b (process 7) has died", follows=True)
EXIT_75 = Failure("rank 0 on a", 75, "exit status 75")
KILLED = Lost("rank 2 on b was killed by signal 9", "b")
HOST_LOST = Lost("the host b was lost", "b", whole_host=True)


def ended(status, at=0.0, begun=4, failures=(), lost=None, newest="step 5", asked=False):
    return Ended(status, at, begun, failures, lost, newest, asked)


@pytest.mark.parametrize("history, way", [
    ([ended(0)], Way.DONE),
    ([ended(75)], Way.LEFT),
    ([ended(75, failures=[EXIT_75], asked=True)], Way.LEFT),
    ([ended(75, failures=[EXIT_75])], Way.ERROR),  # the program's own status
    ([ended(75, failures=[ERROR])], Way.LEFT),
    ([ended(1, failures=[ERROR])], Way.ERROR),
    ([ended(3, failures=[ERROR, FOLLOWS])], Way.ERROR),
    ([ended(200, failures=[Failure("rank 0 on a", 200, "exit status 200")])], Way.ERROR),
    ([ended(137)], Way.LOSS),
    ([ended(137, failures=[ERROR])], Way.LOSS),  # another rank has failed because of it
    ([ended(1, failures=[FOLLOWS])], Way.LOSS),
    ([ended(1)], Way.LOSS),  # mpirun has lost a host
    ([ended(1, failures=[ERROR], lost=HOST_LOST)], Way.LOSS),  # another rank has failed before mpirun ended it
    ([ended(1, failures=[ERROR], lost=KILLED)], Way.ERROR),  # the failing rank's mpirun has killed the others
    ([ended(9)], Way.LOSS),  # Hydra's status after SIGKILL
    ([ended(1, begun=0)], Way.ERROR),  # mpirun could not start the ranks, or they are no Python programs
    ([ended(137, begun=0)], Way.LOSS),
    ([ended(9, begun=0, lost=KILLED)], Way.LOSS),  # under Hydra
    ([ended(137), ended(1, begun=0)], Way.LOSS),  # an attempt has begun before
])  # fmt: skip
def test_ways_to_end(history, way):
    assert way_of(history, POLICY.leave_status) is way


def test_a_loss_is_restarted_until_the_limit():
    history = []
    for number in range(4):
        history.append(ended(137, at=10.0 * number, lost=KILLED, newest=f"step {number}"))
        decision = decide(history, POLICY)
        assert isinstance(decision, Again) == (number < 3), decision
    assert decision == Stop(
        137, f"{KILLED.what}. There were 3 restarts within 100 s (--max-restarts, --restart-window): no restart"
    )
    history[-1] = ended(137, at=120.0, newest="step 3")  # the first two are older than the window
    assert isinstance(decide(history, POLICY), Again)


def test_losses_without_a_new_set_end_the_job():
    """However long an attempt takes."""
    history = [ended(139, at=300.0 * number) for number in range(3)]
    assert isinstance(decide(history, POLICY), Again)
    decision = decide([*history, ended(139, at=900.0)], POLICY)
    why = (
        "a process was killed by signal 11. After 3 restarts in a row (--max-restarts) there is no new set: no restart"
    )
    assert decision == Stop(139, why)
    assert isinstance(decide([*history, ended(139, at=900.0, newest="step 9")], POLICY), Again)


NO_RESTARTS = Policy(4, 4, 0, 100.0, 75)
NO_SET = Stop(75, "The ranks have left without a set: the next job starts from the beginning")


@pytest.mark.parametrize("history, policy, stop", [
    ([ended(75, newest="")], POLICY, NO_SET), ([ended(75, newest="")], NO_RESTARTS, NO_SET),
    ([ended(137), ended(0)], POLICY, Stop(0)), ([ended(137), ended(75)], POLICY, Stop(75)),
    *(([ended(status)], NO_RESTARTS, Stop(status)) for status in (0, 1, 75, 137)),  # the status is the job's
])  # fmt: skip
def test_no_restart(history, policy, stop):
    assert decide(history, policy) == stop


def test_a_programs_error():
    """Without a set, the error ends the job. With a set, the job is restarted once at the same step."""
    once = decide([ended(3, failures=[ERROR], newest="")], POLICY)
    assert isinstance(once, Stop) and once.status == 3
    assert "rank 1 on a failed (ValueError: no such file). This is the program's own error, and no set" in once.why
    error = ended(3, failures=[ERROR])
    assert isinstance(decide([error], POLICY), Again)
    assert isinstance(decide([error, ended(137), ended(3, failures=[ERROR], newest="step 10")], POLICY), Again)
    twice = decide([error, ended(137), error], POLICY)
    assert isinstance(twice, Stop) and twice.status == 3 and "has failed twice after step 5: no restart" in twice.why
    assert isinstance(decide([ended(137), error], POLICY), Again)  # a loss is no error


def test_the_pause_doubles_while_no_set_is_saved():
    many = Policy(4, 3, 100, 1e6, 75)
    pauses = [decide([ended(137)] * number, many).pause for number in range(1, 9)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert decide([*[ended(137)] * 8, ended(137, newest="step 10")], many).pause == 1


def test_hosts_that_fail_twice_in_a_row_are_left_out_for_a_while():
    def left_out(*names_and_times):
        history = [ended(137, at, lost=Lost("", name), newest=str(at)) for name, at in names_and_times]
        return set(decide(history, Policy(4, 3, 100, 1e6, 75)).left_out)

    assert left_out(("a", 0)) == left_out(("a", 0), ("b", 1)) == left_out(("a", 0), ("b", 1), ("a", 2)) == set()
    assert left_out(("a", 0), ("a", 1)) == left_out(("a", 0), ("a", 1), ("b", 2)) == {"a"}
    assert left_out(("a", 0), ("a", 1), ("b", 2), ("b", 3)) == {"a", "b"}
    assert left_out(("a", 0), ("a", 1), ("b", 2 + LEFT_OUT_SECONDS)) == set()


A, B, C, READER = Host("a", 2), Host("b", 1), Host("c", 1), Host("r", 0)


@pytest.mark.parametrize("hosts, answering, left_out, min_np, chosen", [
    ((A, B, C), "abc", "", 3, (A, B, C)), ((A, B, C), "ab", "", 3, (A, B)), ((A, B, C), "abc", "c", 3, (A, B)),
    ((A, B, C), "abc", "a", 3, (A, B, C)),  # the others have too few slots
    ((A, B, C), "ab", "b", 3, (A, B)), ((A, B, C), "bc", "", 3, None), ((A, B, C), "a", "", 3, None), ((A, B, C), "", "", 3, None),
    ((A, READER), "ar", "", 2, (A, READER)), ((A, READER), "a", "", 2, (A,)), ((A, READER), "r", "", 1, None),
])  # fmt: skip
def test_hosts_of_the_next_attempt(hosts, answering, left_out, min_np, chosen):
    """A host that only reads has no slots."""
    assert choose_hosts(hosts, set(answering), set(left_out), min_np) == chosen


@pytest.mark.parametrize("last, text", [
    (ended(137, lost=KILLED), KILLED.what),
    (ended(137, lost=KILLED, failures=[ERROR, FOLLOWS]), KILLED.what),
    (ended(1, failures=[FOLLOWS, ERROR]), "rank 1 on a failed (ValueError: no such file)"),
    (ended(1, failures=[FOLLOWS]), "rank 0 on a failed (InternalError: rank 1 on b (process 7) has died)"),
    (ended(1, failures=[ERROR], lost=HOST_LOST), HOST_LOST.what),
    (ended(139), "a process was killed by signal 11"), (ended(1), "the job ended with status 1"),
])  # fmt: skip
def test_what_was_lost(last, text):
    assert reason(last) == text


@pytest.mark.parametrize("found, given, name", [
    ("10.0.0.2", ["10.0.0.1", "10.0.0.2"], "10.0.0.2"), ("10.0.0.3", ["10.0.0.1"], "10.0.0.3"),
    ("gpu.b", ["gpu.a", "gpu.b"], "gpu.b"), ("gpu", ["gpu.a", "gpu.b"], "gpu"),
    ("node7", ["node6.cluster", "node7.cluster"], "node7.cluster"), ("node7.cluster", ["node7"], "node7"),
    ("other", ["node7"], "other"),
])  # fmt: skip
def test_the_users_name_of_a_lost_host(found, given, name):
    assert given_name(found, given) == name


def test_the_signal_is_repeated_until_the_end():
    """A program may set its handler late, for example after a long restore."""
    due = signals_to_leave(100.0, grace=90)
    assert due[-2:] == [(190.0, signal.SIGTERM), (205.0, signal.SIGKILL)]
    assert {number for _, number in due[:-2]} == {signal.SIGUSR1}
    times = [at for at, _ in due[:-2]]
    assert times == [100, 105, 115, 125, 135, 145, 155, 165, 175, 185]
    assert [at for at, _ in signals_to_leave(0.0, grace=3)] == [0, 3, 18]
