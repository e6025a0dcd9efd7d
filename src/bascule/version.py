"""The version of Bascule."""

__version__ = "0.1.0"
