"""lanectl: a launcher change that verifies itself and undoes itself."""

__version__ = "0.1.0"
