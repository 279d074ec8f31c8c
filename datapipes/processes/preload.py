"""Imported last by the server that worker processes are forked from.

The server is started with Ctrl-C held back, which would end it while it imports. From here on it ignores Ctrl-C by
itself, and must not hold it back any more: what it forks, also for others, would never see one.
"""

import signal

while signal.SIGINT in signal.sigpending():
    signal.sigwait({signal.SIGINT})  # it was meant for the program
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
