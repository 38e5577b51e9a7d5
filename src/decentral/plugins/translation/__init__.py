"""Translation (`task=translation`): pairs of sentences, encoder-decoder Transformers, beam search and BLEU."""
