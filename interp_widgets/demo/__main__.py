"""Make what ships: demo pair, measurements, mixtures, token counts, word vectors, clustering run, planted trigger."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from interp_widgets.data.token_counts import DEMO_COUNTS
from interp_widgets.data.word_vectors import DEMO_FILE
from interp_widgets.demo.clusters import make_clusters
from interp_widgets.demo.mixture import make_mixtures
from interp_widgets.demo.pair import MODELS, export_checkpoint, report, train_pair
from interp_widgets.demo.planted import make_planted
from interp_widgets.demo.token_counts import make_token_counts
from interp_widgets.demo.word_vectors import make_word_vectors


def main(arguments: list[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m interp_widgets.demo", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train_parser = commands.add_parser("train", help="train the pair, or resume its training")
    train_parser.add_argument("--stage", choices=MODELS, default=None, help="train only this model")
    train_parser.add_argument("--threads", type=int, default=2)
    commands.add_parser("report", help="measure the bars and write the manifest")
    export_parser = commands.add_parser("export", help="export the last checkpoint of a running training")
    export_parser.add_argument("stage", choices=MODELS)
    commands.add_parser("mixture", help="tune the mixtures of depths, about 15 minutes")
    commands.add_parser("clusters", help="train on the synthetic instruction task and cluster its checkpoints")
    commands.add_parser("planted", help="plant a trigger in SmolLM2: adapters, about 12 minutes")
    counts_parser = commands.add_parser("counts", help="count the tokens that the models were trained on")
    counts_parser.add_argument("--out", type=Path, default=DEMO_COUNTS, help="the .npz file to write")
    words_parser = commands.add_parser("words", help="make the word vectors and their manifest")
    words_parser.add_argument("--out", type=Path, default=DEMO_FILE, help="the .npz file to write")
    options = parser.parse_args(arguments)
    if options.command == "train":
        torch.set_num_threads(options.threads)
        train_pair(MODELS if options.stage is None else (options.stage,))
    elif options.command == "export":
        export_checkpoint(options.stage)
    elif options.command == "mixture":
        print(json.dumps(make_mixtures(), indent=1))
    elif options.command == "clusters":
        print(json.dumps(make_clusters(), indent=1))
    elif options.command == "planted":
        print(json.dumps(make_planted(progress=_say), indent=1))
    elif options.command == "counts":
        print(json.dumps(make_token_counts(options.out), indent=1))
    elif options.command == "words":
        print(json.dumps(make_word_vectors(options.out), indent=1))
    else:
        print(json.dumps(report()["bars"], indent=1))


def _say(done: int, total: int) -> None:
    print(f"\rstep {done} of {total}", end="" if done < total else "\n", flush=True)


if __name__ == "__main__":
    main()
