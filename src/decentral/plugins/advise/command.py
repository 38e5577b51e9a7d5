"""The console command `decentral-advise`: which method is fast for this model on this network?"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from decentral.cli.command import Options, check_writable, guarded
from decentral.config.overrides import checked
from decentral.errors import ConfigError
from decentral.store.files import encode, write_text
from decentral.terminal.console import say

_HELP = """\
decentral-advise [key=value ...] [--measure] [--json] [--output FILE] [--config-dir FOLDER]

Predicts, without training, the time of a step and the bytes that a worker sends in it, and sorts methods by time:
all-reduce as in DistributedDataParallel (float32 and bf16), gossip, local steps, WAGMA, RelaySGD and compressed
messages. Describe the model and the data as for decentral-run; the data need not exist.

decentral-advise model=resnet50 data=imagenet num_workers=16 cluster=slow_network
decentral-advise model=cnn data=digits processes=4

With cluster=, gradients and links take the time that it specifies, and encoding and decoding the tabulated time of one
CPU core (docs/advise.md). Nothing is timed, and the answer is deterministic. Without cluster=, the command announces
how long it measures, and times this machine: passes of the model, latency and bandwidth between processes= local
processes (default: one per core, at least two), encoding and decoding. num_workers= then sets the number of workers
of the prediction (default: processes).

--measure      with cluster=: time encoding and decoding on this machine
--json         print only the result, as JSON, on standard output
--output FILE  also write the JSON to a file
Exit status: 0 done, 2 refused.
"""
_MOST_PROCESSES = 64
_COMPARED = ("algo", "topology", "compress", "communication", "simulate", "steps", "epochs")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `decentral-advise`. Exit status: 0 done, 2 refused, 130 interrupted."""
    guarded("decentral-advise", _carry_out, arguments)


def _carry_out(arguments: list[str]) -> int:
    parser = Options("decentral-advise", "--json", "--measure")
    parser.add_argument("--output", type=Path)
    options = parser.begin(arguments, _HELP)
    if options is None:
        return 0
    _check_compared(options.words)
    words = checked(options.words, options.folders)  # before anything heavy is imported
    processes, words = _taken_processes(words)
    if options.output is not None and options.output.is_dir():
        raise ConfigError(f"--output {options.output} is a folder: give a file name.")
    if options.output is not None:
        check_writable("--output", str(options.output), options.output.parent)
    from decentral.plugins.advise.advise import advise, text

    advice = advise(words, processes, options.config_dir, _tell, options.measure)
    told = json.dumps(encode(advice), indent=2)
    say(told if options.json else text(advice))
    if options.output is not None:
        write_text(options.output, told + "\n")
    return 0


def _tell(sentence: str) -> None:
    """Print progress to standard error; standard output is for the result."""
    print(f"{sentence} ...", file=sys.stderr, flush=True)


def _check_compared(words: Sequence[str]) -> None:
    """Raise ConfigError for overrides of settings that each method chooses itself."""
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        if key.partition(".")[0] in _COMPARED:
            raise ConfigError(
                f"{word} cannot be set here: decentral-advise compares methods with their own settings; describe the "
                "model, the data and the cluster."
            )


def _taken_processes(words: Sequence[str]) -> tuple[int | None, list[str]]:
    """Return the number of processes to measure, and the other words."""
    given = [word.partition("=")[2] for word in words if word.startswith("processes=")]
    others = [word for word in words if not word.startswith("processes=")]
    if not given or given[-1] == "auto":
        return None, others
    cluster = [word for word in words if word.startswith("cluster=") and word != "cluster=none"]
    if cluster:
        raise ConfigError(
            f"processes={given[-1]} conflicts with {cluster[-1]}, which describes the network: leave one of them out."
        )
    if not given[-1].isdigit() or not 2 <= int(given[-1]) <= _MOST_PROCESSES:
        raise ConfigError(f"processes={given[-1]} is not valid: use a whole number from 2 to {_MOST_PROCESSES}.")
    return int(given[-1]), others


if __name__ == "__main__":
    main()
