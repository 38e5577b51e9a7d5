"""This machine: its devices and memory, its signals, and processes that end with the one that started them."""
