"""Serve a run or an exported folder over HTTP, in OpenAI's forms, with depth as a field of the request.

  /v1/completions        also streamed, with log-probabilities and echo
  /v1/chat/completions   the same for messages
  /v1/models             what is served
  /health, /metrics      whether it can be asked; numbers for Prometheus

Beyond OpenAI's fields a request may have loops, exit_rule, exit_threshold, budget and deadline (docs/serving.md).

It listens on this machine alone unless --host says otherwise. Ctrl-C or SIGTERM finishes what is under way and ends it.
One line of JSON per request goes to standard error, without any text of prompts or answers.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from contextlib import suppress

from scse.cli.common import Arguments, add_precision, require_positive
from scse.config.adaptive import AdaptiveSettings
from scse.config.use import LOOPS
from scse.errors import UserError
from scse.precision import SERVING
from scse.serve.limits import GRACE_SECONDS, HOST, MOST_BODY, RUNNING, Limits
from scse.serve.wire import KEY_VARIABLE, is_loopback

MIB = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, or one that 'scse export' wrote")
    parser.add_argument("--host", default=HOST, metavar="H", help="where to listen")
    parser.add_argument("--port", type=int, default=8000, metavar="P", help="0 takes any free one")
    parser.add_argument("--api-key", metavar="K", help=f"ask for this key (default: {KEY_VARIABLE}, else none)")
    parser.add_argument("--name", metavar="N", help="the model's name (default: the folder's)")
    parser.add_argument("--max-batch", type=int, default=Limits.batch, metavar="N", help="sequences that share a loop")
    parser.add_argument("--queue", type=int, default=Limits.queue, metavar="N", help="sequences that may wait")
    parser.add_argument(
        "--loops",
        type=int,
        metavar="T",
        help=f"loops of requests without (default: the export's, or {LOOPS}; at most --max-loops)",
    )
    parser.add_argument(
        "--max-loops",
        type=int,
        metavar="T",
        help=f"the most a request may ask for (default: {Limits.loops}, or the default of --loops where that is more)",
    )
    parser.add_argument(
        "--exit-rule", default=AdaptiveSettings.rule, metavar="R", help="exit rule of requests that name none"
    )
    parser.add_argument("--exit-threshold", type=float, metavar="X", help="threshold of early exit per token")
    parser.add_argument(
        "--cache-mib", type=int, metavar="M", help="for keys and values (default: half the free memory)"
    )
    parser.add_argument("--deadline", type=float, metavar="S", help="seconds after which a request ends")
    parser.add_argument(
        "--max-body-kib", type=int, default=MOST_BODY >> 10, metavar="K", help="the longest body of a request"
    )
    parser.add_argument(
        "--grace", type=int, default=GRACE_SECONDS, metavar="S", help="seconds to finish in when told to stop"
    )
    add_precision(parser, SERVING)
    parser.add_argument("--quiet", action="store_true", help="no line per request")


def run(args: Arguments) -> None:
    from scse.evaluation.rules import RULES

    require_positive(args, "max_batch", "queue", "loops", "max_loops", "cache_mib", "max_body_kib")
    for name in ("exit_threshold", "deadline", "grace"):
        if getattr(args, name) is not None and not getattr(args, name) >= 0:
            raise UserError(f"--{name.replace('_', '-')} must not be negative, got {getattr(args, name)}")
    RULES.find(args.exit_rule)  # before the model is read
    chosen_key(args.api_key)
    try:
        serve(args)
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise UserError("serving needs starlette and uvicorn; pip install 'scse[serve]'") from None


def serve(args: Arguments) -> None:
    from dataclasses import replace

    from scse.evaluation.rules import RULES
    from scse.machine import keep_freed_memory
    from scse.serve.app import Settings
    from scse.serve.ask import Defaults
    from scse.serve.served import open_served
    from scse.serve.server import Server
    from scse.signals import STOPS

    keep_freed_memory()
    served = open_served(args.run, args.device, args.precision)
    if args.name:
        served = replace(served, name=args.name)
    if args.exit_threshold is not None:
        RULES.find(args.exit_rule).check(served.model)
    loops, most = chosen_loops(args.loops, served.loops, args.max_loops)
    key = chosen_key(args.api_key)
    limits = Limits(
        batch=args.max_batch,
        lanes=RUNNING * args.max_batch,
        queue=args.queue,
        loops=most,
        cache_bytes=(args.cache_mib or free_mib() // 2) * MIB,
    )
    defaults = Defaults(loops, args.exit_rule, args.exit_threshold, args.deadline)
    local = is_loopback(args.host)
    settings = Settings(key, args.max_body_kib << 10, loopback_only=local, host=args.host)
    log_requests(not args.quiet)
    # uvicorn hands the signal that ended it on; here that is the ordinary end
    with Server(served, args.host, args.port, limits, defaults, settings, args.grace) as server, suppress(*STOPS):
        where = "this machine only" if local else "reachable from elsewhere" + ("" if key else ", and without a key")
        print(f"serve: {server.address}/v1   ({served.name}; {where}; Ctrl-C ends it)", flush=True)
        server.run()


def chosen_loops(asked: int | None, usual: int, most: int | None) -> tuple[int, int]:
    """The loops of requests that name none, and the most that one may ask for."""
    loops = asked or min(usual, most or usual)
    if most is not None and loops > most:
        raise UserError(f"--loops {loops} is more than --max-loops {most}; lower the one or raise the other")
    return loops, most or max(loops, Limits.loops)


def chosen_key(option: str | None) -> str | None:
    """The key to ask for. An empty one is a mistake, such as a variable of the shell that is not set."""
    key = os.environ.get(KEY_VARIABLE) if option is None else option
    if key == "":
        where = f"{KEY_VARIABLE} is" if option is None else "--api-key is"
        raise UserError(f"{where} empty; give a key, or leave it out to serve without one")
    return key


def log_requests(wanted: bool) -> None:
    """Lines of JSON, as they are, on standard error."""
    log = logging.getLogger("scse.serve.requests")
    log.propagate = False
    log.setLevel(logging.INFO if wanted else logging.CRITICAL)
    if not log.handlers:
        log.addHandler(logging.StreamHandler(sys.stderr))


def free_mib() -> int:
    """Memory that nobody uses now, or two GiB where the system does not say."""
    try:
        return max(2, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB)
    except (ValueError, OSError, AttributeError):
        return 2048
