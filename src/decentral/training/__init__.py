"""One run: assemble, take steps, evaluate, record, checkpoint. Names no algorithm, data set or topology."""
