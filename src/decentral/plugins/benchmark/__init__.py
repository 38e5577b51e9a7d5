"""`decentral-benchmark`: methods with equal tuning budgets in fixed scenarios, submissions, and the leaderboard."""
