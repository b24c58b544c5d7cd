"""Stage 2: images and captions to a store of arrays, by sources, images, encoders and pipeline."""
