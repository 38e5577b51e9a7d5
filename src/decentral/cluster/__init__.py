"""The virtual cluster (`cluster=`): a model of gradient times, stragglers and link costs."""
