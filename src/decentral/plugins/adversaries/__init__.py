"""Byzantine workers (`attack=`), robust mixing (`robust=`), and what honest-but-curious workers learn from messages."""
