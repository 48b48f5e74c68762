"""The accuracy of finished runs against their speed and memory."""
