"""The command `tuner`: parsing of argv and output. The work of the commands is done in the layers below."""

import signal


def main() -> None:
    """Run the command line; the entry point of the console script."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules load, Ctrl-C exits without a traceback
    from tuner.cli.app import run

    signal.signal(signal.SIGINT, before)
    run()
