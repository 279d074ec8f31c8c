"""Workers: processes and threads that make minibatches."""
