"""What the program costs, each figure a ratio of two things measured in turn in one run. One file per benchmark."""
