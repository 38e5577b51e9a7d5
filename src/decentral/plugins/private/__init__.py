"""Private gossip: noise on gradients (`privacy=`), and what every worker learns about every other one."""
