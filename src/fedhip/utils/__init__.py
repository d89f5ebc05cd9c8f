"""Small tools with one job each, that know nothing of federated learning. Everybody may import them.

bounds     numbers beyond which no option makes sense
files      files written whole and flushed, for everybody or for their owner alone
groups     names of groups as numbers
late       names of a package that are imported when somebody asks
nearest    "did you mean"
parallel   many clients on the cores of one machine
progress   the callback of everything that takes time
splitmix   a hash of whole numbers
stopwatch  seconds by phase
style      colours and manners of figures
text       names and JSON that can be written anywhere
toml       TOML read and written
words      numbers, sizes and durations as people read them
"""
