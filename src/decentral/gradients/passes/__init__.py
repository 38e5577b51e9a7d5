"""Forward and backward passes of a process's workers. They import torch; the executions themselves do not."""
