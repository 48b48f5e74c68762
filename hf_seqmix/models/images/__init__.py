"""Images as models read them: the image processor, and its registration, which needs no Pillow."""
