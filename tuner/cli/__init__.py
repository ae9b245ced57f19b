"""The command `tuner`: argv to values and back. What the commands do is in the modules below this one."""

import signal


def main() -> None:
    """Entry point of the console script."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules load, Ctrl-C ends it all without a traceback
    from tuner.cli.app import run

    signal.signal(signal.SIGINT, before)
    run()
