"""Rules for choosing a learning rate, and what one of your own has to be."""
