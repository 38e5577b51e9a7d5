"""Reinforcement learning (`task=rl`): PPO on grid worlds, on gymnasium's and on Habitat's environments."""
