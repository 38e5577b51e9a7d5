"""What compressors compute with: the largest entries of a row, signs in bits. Imports torch; components do not."""
