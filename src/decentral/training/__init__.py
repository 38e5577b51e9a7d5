"""One run: assemble, step, evaluate, record, checkpoint. Independent of algorithm, data set and topology."""
