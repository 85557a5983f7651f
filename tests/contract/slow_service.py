"""A program that serves a small policy: `python slow_service.py KIND PORT [SECONDS]`; the log names the address."""

import argparse

from fakes import BrokenLoader, CountingPolicy, DyingPolicy, ForgetfulPolicy, SlowPolicy

from vla_contract import serve

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float, nargs="?", default=0.0)
    parser.add_argument("--token")
    parser.add_argument("--request-s", type=float, default=30.0)
    given = parser.parse_args()
    policies = {
        "slow": lambda: SlowPolicy(given.seconds),
        "counting": CountingPolicy,
        "forgetful": ForgetfulPolicy,
        "dying": DyingPolicy,
        "failing": lambda: DyingPolicy("no reason is given"),
        "broken": BrokenLoader(given.seconds),
    }
    settings = {"token": given.token, "request_timeout_s": given.request_s}
    linger_s = 4.0 if given.kind == "broken" else 1.0  # it is asked three times after it has failed
    serve(policies[given.kind], port=given.port, linger_s=linger_s, **settings)
