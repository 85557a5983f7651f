"""Real faults in real processes: with this folder first on PYTHONPATH, Python imports this before anything else.

TEST_CLOCK_FILE  a file with seconds: every process's time of day is that much ahead, from the moment it is written
TEST_HANG_IN     names of phases, as in "SCENE,VIDEO": the first worker to enter each hangs there, its main thread only
TEST_HANG_DIR    where the workers note which hang has happened
TEST_HANG_START  seconds that a worker sleeps before it imports anything
"""

import os
import sys
import time

IS_WORKER = "vla_evaluation.workers.worker" in sys.orig_argv
HANGS_WITHIN_S = 2.0


def shift_the_clock(path):
    true_time = time.time

    def shifted():
        with open(path) as file:
            return true_time() + float(file.read() or 0)

    time.time = shifted


def hang_in(names, directory):
    from vla_evaluation.workers.heartbeat import WorkerHeartbeat

    enter = WorkerHeartbeat.enter

    def hanging(self, phase, within_s, steps=0):
        enter(self, phase, within_s, steps)
        if phase.name in names and is_first(os.path.join(directory, phase.name)):
            enter(self, phase, HANGS_WITHIN_S, steps)
            while True:
                time.sleep(60)

    WorkerHeartbeat.enter = hanging


def is_first(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


if "TEST_CLOCK_FILE" in os.environ:
    shift_the_clock(os.environ["TEST_CLOCK_FILE"])
if IS_WORKER and "TEST_HANG_START" in os.environ:
    time.sleep(float(os.environ["TEST_HANG_START"]))
if IS_WORKER and "TEST_HANG_IN" in os.environ:
    hang_in(os.environ["TEST_HANG_IN"].split(","), os.environ["TEST_HANG_DIR"])
