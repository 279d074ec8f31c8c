"""Imported by multiprocessing's fork server after all other modules. Worker processes are forked from this server.

The server starts with SIGINT blocked, since Ctrl-C would end it while it imports. After this import it ignores SIGINT
by itself. So unblock SIGINT here, or every process forked from the server inherits the block.
"""

import signal

while signal.SIGINT in signal.sigpending():
    signal.sigwait({signal.SIGINT})  # this Ctrl-C was meant for the program
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
