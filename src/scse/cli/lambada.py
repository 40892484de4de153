"""LAMBADA: predict the last word of a passage. Perplexity and accuracy are over the tokens of the answers.

'exact_accuracy' is the share of passages whose last word is right in every token. Passages longer than the model's
context keep their end.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from scse.cli.common import Arguments, add_evaluation, positive_ints, print_rows, require_positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--depths", type=positive_ints, default=[8, 48], metavar="T,T", help="default 8,48")
    add_evaluation(parser, unit="passages", data="lambada")


def run(args: Arguments) -> None:
    import hashlib

    from scse.data import DataConfig, corpus_documents
    from scse.evaluation.completion import complete, last_word_completions
    from scse.evaluation.runs import open_run
    from scse.experiments.records import FILE, append_records, identity, new_record
    from scse.machine import keep_freed_memory
    from scse.progress import progress

    require_positive(args, "batch", "limit")
    keep_freed_memory()
    opened = open_run(args.run)
    data = DataConfig(args.data, data_dir=args.data_dir, cache_dir=args.cache_dir)
    texts = list(islice(corpus_documents(data, args.split), args.limit))
    examples = list(last_word_completions(texts, opened.tokenizer))
    depths = list(dict.fromkeys(args.depths))
    with progress("completing", len(examples), "passages", enabled=not args.quiet) as meter:
        results = complete(opened.model, examples, depths, args.batch, meter)
    about = {"dataset": args.data, "split": args.split, "limit": args.limit, "tag": args.tag}
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    records = []
    for result in results:
        numbers = {name: value for name, value in asdict(result).items() if name != "depth"}
        who = identity(opened.config, opened.step, depth=result.depth, task="completion", **about)
        records.append(new_record(who, numbers, digest))
    append_records(Path(args.run) / FILE, records)
    print_rows([asdict(result) for result in results], args.json, title=f"{args.run} on {args.data} {args.split}")
