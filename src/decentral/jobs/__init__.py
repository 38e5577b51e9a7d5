"""What a study carries out besides training runs: throughput, exchanges, consensus, races, schools of fish,
facts about graphs, ensembles of small problems; and what `decentral-advise` measures and predicts."""
