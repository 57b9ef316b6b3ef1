"""Network files of other frameworks, read as operator graphs for predictions, without the frameworks."""
