"""Which commands would this shell script run?

script.py    what is known of a script: its commands, word by word
words.py     one word: quotes, expansions, here-documents
grammar.py   from a text to its simple commands
wrappers.py  through `sudo`, `xargs`, `bash -c` to the commands behind them
"""
